// franz-go's fake cluster: one broker on a free port of loopback, which it prints; until SIGTERM. With an argument, such
// as v2.1, it speaks what that release of Kafka spoke.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kversion"
)

func main() {
	options := []kfake.Opt{kfake.NumBrokers(1), kfake.DefaultNumPartitions(4), kfake.AllowAutoTopicCreation(),
		kfake.GroupMinSessionTimeout(time.Second), kfake.GroupMaxSessionTimeout(30 * time.Minute)}
	if len(os.Args) > 1 {
		options = append(options, kfake.MaxVersions(kversion.FromString(os.Args[1])))
	}
	cluster, err := kfake.NewCluster(options...)
	if err != nil {
		panic(err)
	}
	defer cluster.Close()
	fmt.Println("listening on", cluster.ListenAddrs()[0])
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM)
	<-asked
}
