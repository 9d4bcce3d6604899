// A member of a group with franz-go: BROKERS TOPIC GROUP range|cooperative-sticky [INSTANCE].
// Says what happens to it, a JSON object on each line, and commits whatever it has said before it asks for more.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func say(event string) func(context.Context, *kgo.Client, map[string][]int32) {
	return func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
		for _, numbers := range partitions {
			text, _ := json.Marshal(numbers)
			fmt.Printf("{\"event\": %q, \"partitions\": %s}\n", event, text)
		}
	}
}

func main() {
	balancer := kgo.CooperativeStickyBalancer()
	if os.Args[4] == "range" {
		balancer = kgo.RangeBalancer()
	}
	options := []kgo.Opt{
		kgo.SeedBrokers(os.Args[1]), kgo.ConsumeTopics(os.Args[2]), kgo.ConsumerGroup(os.Args[3]), kgo.Balancers(balancer),
		kgo.SessionTimeout(30 * time.Second), kgo.HeartbeatInterval(300 * time.Millisecond),
		kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(), kgo.FetchMaxWait(200 * time.Millisecond),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.OnPartitionsAssigned(say("assigned")), kgo.OnPartitionsRevoked(say("revoked")), kgo.OnPartitionsLost(say("lost")),
	}
	if len(os.Args) > 5 {
		options = append(options, kgo.InstanceID(os.Args[5]))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		panic(err)
	}
	asked, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	for asked.Err() == nil {
		fetches := client.PollRecords(asked, 100)
		fetches.EachPartition(func(part kgo.FetchTopicPartition) {
			if count := len(part.Records); count > 0 {
				fmt.Printf("{\"event\": \"records\", \"partition\": %d, \"first\": %d, \"last\": %d}\n",
					part.Partition, part.Records[0].Offset, part.Records[count-1].Offset)
			}
		})
		if err := client.CommitUncommittedOffsets(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, "commit:", err)
		}
		client.AllowRebalance()
	}
	client.CloseAllowingRebalance()
}
