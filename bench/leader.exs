# Round trips of a group of `Sconce.Leader` between OS processes: votes, elections, renewals, a leader that resigns, and one
# that is killed with `kill -9`.
#
#     mix run leader.exs [--lease MS] [--kills N] [--resignations N] [--seconds S] | tee leader.txt
#
# Three VMs of this machine are the members; they talk over Erlang distribution, which is TCP on the loopback interface.
# Between machines the round trips of the network are added. The first rows are controls of the same run, without a leader:
# a message to a process of another VM and back, and an empty `:erpc` call. Times of several VMs are compared by the
# monotonic clock of the machine. Fails if the term of a leader is not above those before it.

Sconce.Bench.Leader.main(System.argv())
