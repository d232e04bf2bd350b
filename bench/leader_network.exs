# A group of `Sconce.Leader` over delayed links: round trips of votes, elections, `kill -9` of the leader, and partitions.
#
#     mix run leader_network.exs [--lease MS] [--kills N] [--partitions N] | tee leader_network.txt    # Linux, as root
#
# Three VMs are the members, each in a network namespace of its own. All packets between them go through
# `leader_network.py`, which delays and loses them, so TCP retransmits as it would between machines. These are virtual
# links of one machine and no LAN of several: the VMs share its two cores and its clock. The commands to the members go
# through pipes, so a partition does not delay them.
#
# A process beside each member asks about every millisecond whether it leads and whether its child runs. A lead is the
# time between two negative answers by the clock of the machine, so its length is an upper bound. Fails if the leads of
# two members overlap, if their children do, if a term does not grow, or if a follower that is cut off costs the lead.

Sconce.Bench.LeaderNetwork.main(System.argv())
