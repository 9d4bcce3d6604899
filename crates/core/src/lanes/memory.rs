//! Which memory a lane's records keep in use: that of record batches, each until its last record is done with.

use alloc::vec::Vec;

use super::offset_tracker::NONE;

/// Records that follow each other and share their memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pinned {
    /// How many there are.
    pub records: usize,
    /// The memory that stays in use while any of them does, in bytes.
    pub bytes: usize,
}

#[derive(Debug)]
struct Piece {
    bytes: usize,
    /// Records of it that were handed out and are not done with.
    out: u32,
    /// Whether more of it are queued.
    open: bool,
    next_free: u32,
}

/// The memory of records that were handed out.
#[derive(Debug)]
pub(super) struct Memory {
    pieces: Vec<Piece>,
    free: u32,
    /// What is held in all, queued records included.
    held: usize,
    /// What came free since it was asked for.
    freed: usize,
}

impl Memory {
    pub(super) const fn new() -> Self {
        Self { pieces: Vec::new(), free: NONE, held: 0, freed: 0 }
    }

    pub(super) const fn held(&self) -> usize {
        self.held
    }

    pub(super) const fn take_freed(&mut self) -> usize {
        core::mem::replace(&mut self.freed, 0)
    }

    /// Queued records hold this much.
    pub(super) const fn queue(&mut self, bytes: usize) {
        self.held += bytes;
    }

    /// Queued records that nothing was handed out of are gone.
    pub(super) const fn drop_queued(&mut self, bytes: usize) {
        self.held -= bytes;
        self.freed += bytes;
    }

    /// The first record of queued ones that share `bytes` is about to be handed out.
    pub(super) fn open(&mut self, bytes: usize) -> u32 {
        let piece = Piece { bytes, out: 0, open: true, next_free: NONE };
        if self.free == NONE {
            let at = u32::try_from(self.pieces.len()).expect("fewer pieces than memory can hold");
            self.pieces.push(piece);
            return at;
        }
        let at = self.free;
        self.free = self.pieces[at as usize].next_free;
        self.pieces[at as usize] = piece;
        at
    }

    /// A copy of a record is handed out.
    pub(super) fn copied(&mut self, bytes: usize) -> u32 {
        self.held += bytes;
        let at = self.open(bytes);
        self.pieces[at as usize].out = 1;
        self.pieces[at as usize].open = false;
        at
    }

    /// A record of the piece is handed out.
    pub(super) fn hand_out(&mut self, at: u32) {
        self.pieces[at as usize].out += 1;
    }

    /// A record of the piece is done with.
    pub(super) fn give_back(&mut self, at: u32) {
        if let Some(piece) = self.pieces.get_mut(at as usize) {
            piece.out -= 1;
            self.settle(at);
        }
    }

    /// No more records of the piece are queued.
    pub(super) fn close(&mut self, at: u32) {
        if let Some(piece) = self.pieces.get_mut(at as usize) {
            piece.open = false;
            self.settle(at);
        }
    }

    fn settle(&mut self, at: u32) {
        let piece = &mut self.pieces[at as usize];
        if piece.open || piece.out > 0 {
            return;
        }
        self.held -= piece.bytes;
        self.freed += piece.bytes;
        piece.next_free = self.free;
        self.free = at;
    }

    /// The lane has ended: all of it counts as free.
    pub(super) fn drop_all(&mut self) {
        self.freed += core::mem::take(&mut self.held);
        self.pieces.clear();
        self.free = NONE;
    }
}
