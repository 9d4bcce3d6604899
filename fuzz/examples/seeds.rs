//! Writes the seeds of every target into `corpus/`, where cargo-fuzz looks for them.

use std::fs;
use std::path::Path;

fn main() -> std::io::Result<()> {
    for target in tramline_fuzzing::ALL {
        let folder = Path::new("corpus").join(target.name);
        fs::create_dir_all(&folder)?;
        for (n, seed) in (target.seeds)().iter().enumerate() {
            fs::write(folder.join(format!("seed-{n}")), seed)?;
        }
    }
    Ok(())
}
