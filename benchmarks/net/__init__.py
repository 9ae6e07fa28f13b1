"""How fast nodes are: python -m benchmarks.net [--quick] [--rate R] [--out benchmarks/results/net.md]
                    python -m benchmarks.net --nodes 8 --bytes 100     one load, in a minute or two
                    python -m benchmarks.net --counts [--nodes 8]      what no busy machine changes
                    python -m benchmarks.net --profile --nodes 8 --bytes 100     where the time goes, by samples
                    python -m benchmarks.net --nodes 32 --bytes 10000 --each 40  longer rounds

The workload: n nodes on loopback, all in one process and one event loop; each sends to each other in turn, as fast as
it may, and receives. One process, so that what is compared is work, not the scheduler: deliveries for a second of CPU,
all nodes together, a broker's process too. Best of several rounds, after one that is not counted, in two passes over
all systems.

Then latency, from before the send to after the receive. Every 2 ms each node sends what is due to its peers in turn,
all systems at the same rate: the one that keeps `permit` busy half of the time (or `--rate`). That is not half of the
deliveries a second before it: those travel by dozens, these one by one, where each has to be carried, acknowledged and
permitted by itself. A machine that is busy with other things gives the time that a system waited for its turn: to know
what the system does, give it a core, as in `chrt -f 1 python -m benchmarks.net`.

With `full`, two limits stand beside the result: three syncs of a page in the same run, and the p50 of journals alone
(`journals`), which write and sync what nodes write, and do nothing else.

The peers (`systems`, `others`), which promise no order, keep nothing and resume nothing:

bare streams  the same frames over asyncio streams, as one would write it to get messages from process to process: a
              connection for each pair and direction; a message is a frame of four bytes of length, eight for its
              number, about what ours adds to a payload, and the payload; `write`, then `await drain()`. A task for each
              connection awaits `readexactly` for the length and for the rest, and puts the rest into the node's
              `asyncio.Queue` of 1024, which the application awaits: so a slow reader stops its senders.
pyzmq         `zmq.asyncio`: each node binds a PULL socket, and connects a PUSH socket to each other
nats core     a client of nats-py for each node, and the real server: each node subscribes to a subject of its own
"""
