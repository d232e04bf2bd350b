defmodule Sconce.Bench.LeaderNetwork do
  @moduledoc false
  # Times of a group of `Sconce.Leader` over delayed links; `leader_network.exs` describes them.

  alias Sconce.Bench.{Leader, Machine, Nodes, Output}
  alias Sconce.Bench.LeaderNetwork.{Network, Record}
  alias Sconce.Figures

  @switches [lease: :integer, kills: :integer, partitions: :integer]
  @defaults [lease: 2_000, kills: 10, partitions: 5]
  @name :bench_leader
  @trips 500
  @wait_ms 120_000

  # Delay and jitter of each way in milliseconds, and the share of lost packets.
  @links [{0, 0, 0}, {1, 0.2, 0}, {5, 2, 0.01}]

  # Packets of the first to the second are lost; then whether another member leads, the leader stays, or none leads.
  @partitions [
    {"the leader cut off", [{:leader, :x}, {:leader, :y}, {:x, :leader}, {:y, :leader}], :moves},
    {"the leader's interface down", :down, :moves},
    {"only packets of the leader lost", [{:leader, :x}, {:leader, :y}], :moves},
    {"only packets to the leader lost", [{:x, :leader}, {:y, :leader}], :moves},
    {"leader and one follower apart", [{:leader, :x}, {:x, :leader}], :stays},
    {"a follower cut off", [{:leader, :x}, {:x, :leader}, {:x, :y}, {:y, :x}], :stays},
    {"all members apart", for(a <- [:leader, :x, :y], b <- [:leader, :x, :y], do: {a, b}), :none}
  ]

  @columns [
    {"what", 52, :left},
    {"count", 6, :right},
    {"min", 8, :right},
    {"p50", 8, :right},
    {"max", 8, :right},
    {"unit", 0, :left}
  ]

  def main(args) do
    {opts, []} = OptionParser.parse!(args, strict: @switches)
    opts = @defaults |> Keyword.merge(opts) |> Map.new()
    IO.puts(Output.header(Machine.describe()))

    IO.puts(
      "three VMs in network namespaces of this machine, virtual links; lease #{opts.lease} ms"
    )

    for link <- @links, do: measured(link, opts)
  end

  defp measured({delay, jitter, loss} = link, opts) do
    network = Network.open(3)
    Network.command(network, "link #{delay} #{jitter} #{loss}")
    peers = for n <- 1..3, do: peer(network, n)
    lost = Figures.decimal(100.0 * loss)
    IO.puts("\neach way #{delay} ms, plus or minus #{jitter} ms, #{lost} % of packets lost")
    IO.puts(Output.line(@columns, for({title, _width, _side} <- @columns, do: title)))
    clocks(peers)
    trips(peers)
    peers = kills(network, peers, opts)
    if link != hd(@links), do: partitions(network, peers, opts)
    Network.close(network)
  end

  # VMs

  defp peer(network, n) do
    host = Network.host(n)
    name = "member#{n}_#{System.unique_integer([:positive])}"
    erl = ~c"#{:code.root_dir()}/bin/erl"

    options = %{
      name: String.to_atom(name),
      host: String.to_charlist(host),
      longnames: true,
      connection: :standard_io,
      exec: {Network.ip(), [~c"netns", ~c"exec", Network.namespace(network, n), erl]},
      args: [~c"-connect_all", ~c"false", ~c"-setcookie", ~c"sconce" | Nodes.paths()],
      wait_boot: @wait_ms
    }

    {:ok, pid, node} = :peer.start(options)
    peer = %{n: n, node: node, pid: pid}
    {:ok, _apps} = call(peer, Application, :ensure_all_started, [:sconce])
    call(peer, Logger, :configure, [[level: :none]])
    Map.put(peer, :os_pid, call(peer, System, :pid, []))
  end

  defp call(peer, module, function, args),
    do: :peer.call(peer.pid, module, function, args, @wait_ms)

  # Times of several VMs are compared below.
  defp clocks(peers) do
    differences =
      for peer <- peers, _n <- 1..100 do
        before = Record.clock()
        theirs = call(peer, Record, :clock, [])
        later = Record.clock()
        (theirs >= before and theirs <= later) || raise "the clocks of two VMs differ"
        later - before
      end

    row("control: question to a member by pipe", differences, "us")
  end

  # Round trips

  defp trips([a, b, _c]) do
    call(b, Leader, :start_echo, [])
    row("control: message and back", call(a, Leader, :echo_times, [b.node, @trips, 5]), "us")
    alone = [name: :bench_votes, members: [a.node, b.node], lease_ms: 600_000]
    call(b, Leader, :start_member, [alone])
    call(b, Leader, :settle, [:bench_votes])
    row("one vote: asked, granted", call(a, Leader, :vote_times, [a.node, b.node, @trips]), "us")
    call(b, Leader, :stop_member, [:bench_votes])
  end

  # A group

  defp start(peers, opts) do
    nodes = Enum.map(peers, & &1.node)
    member = [name: @name, members: nodes, lease_ms: opts.lease, start: Record.Child]
    for peer <- peers, do: call(peer, Record, :start, [@name, member])
    agreed(peers)
  end

  defp stop(peers) do
    records = for peer <- peers, do: {peer.node, call(peer, Record, :stop, [@name])}
    verify(records)
    records
  end

  # Waits until all of these members know the same leader, one of them.
  defp agreed(peers) do
    nodes = Enum.map(peers, & &1.node)

    case peers |> Enum.map(&call(&1, Sconce.Leader, :leader, [@name])) |> Enum.uniq() do
      [{:ok, leader}] -> if leader in nodes, do: of(peers, leader), else: later(peers)
      _not_yet -> later(peers)
    end
  end

  defp later(peers) do
    Process.sleep(1)
    agreed(peers)
  end

  defp of(peers, node), do: Enum.find(peers, &(&1.node == node))

  # No two leads overlap, and no two children; later leads have higher terms.
  defp verify(records) do
    for kind <- [:leads, :children] do
      spans = for {node, record} <- records, span <- Map.fetch!(record, kind), do: {node, span}

      for {a, one} <- spans, {b, other} <- spans, a < b, overlap?(one, other) do
        raise "#{kind} of #{a} and #{b} overlap: #{inspect({one, other})}"
      end
    end

    leads =
      for {node, %{leads: leads}} <- records, lead <- leads, do: {lead.from, {lead.value, node}}

    leads = leads |> Enum.sort() |> Enum.map(&elem(&1, 1)) |> Enum.dedup()
    terms = Enum.map(leads, &elem(&1, 0))
    terms == Enum.sort(Enum.uniq(terms)) || raise "terms do not grow: #{inspect(leads)}"
  end

  # Between the first and the last positive answer it was the leader for certain.
  defp overlap?(one, other), do: one.from < other.last and other.from < one.last

  # Kills

  defp kills(network, peers, opts) do
    {times, elections, peers} =
      Enum.reduce(1..opts.kills, {[], [], peers}, fn _n, {times, elections, peers} ->
        leader = start(peers, opts)
        Process.sleep(:rand.uniform(div(opts.lease, 5)) + div(opts.lease, 2))
        begun = Record.clock()
        {_output, 0} = System.cmd("kill", ["-9", leader.os_pid])
        rest = List.delete(peers, leader)
        agreed(rest)
        records = rest |> stop() |> Keyword.values()
        {at, us} = next(records, begun)
        {[(at - begun) / 1000 | times], [us | elections], [peer(network, leader.n) | rest]}
      end)

    row("kill -9 of the leader to the next one", times, "ms")
    row("election: asked, votes of a majority", elections, "us")
    peers
  end

  # The first election after a time.
  defp next(records, since) do
    elected =
      for %{events: events} <- records,
          {at, %{event: :elected, election_us: us}} when at > since <- events,
          do: {at, us}

    Enum.min(elected, fn -> raise "no leader was elected" end)
  end

  # Partitions

  defp partitions(network, peers, opts) do
    for {what, cuts, outcome} <- @partitions do
      times = for _n <- 1..opts.partitions, do: partition(network, peers, opts, cuts, outcome)
      IO.puts("partition: #{what}")

      for {key, text} <- [
            lead: "  cut to the end of the lead",
            child: "  cut to the end of its child",
            next: "  cut to the next leader",
            gap: "  between the two leads, at least",
            healed: "  healed to all members following one leader"
          ],
          values = for(%{^key => ms} <- times, do: ms),
          values != [],
          do: row(text, values, "ms")
    end

    IO.puts("leads that overlapped: 0; children that overlapped: 0")
  end

  defp partition(network, peers, opts, cuts, outcome) do
    leader = start(peers, opts)
    [x, y] = Enum.shuffle(List.delete(peers, leader))
    members = %{leader: leader, x: x, y: y}
    Process.sleep(:rand.uniform(div(opts.lease, 5)) + div(opts.lease, 2))
    cut = Record.clock()
    cut(network, members, cuts)
    # The end of the lead, and an election.
    Process.sleep(3 * opts.lease)
    healed = Record.clock()
    heal(network, members, cuts)
    agreed(peers)
    followed = Record.clock()
    {own, others} = peers |> stop() |> Map.new() |> Map.pop!(leader.node)
    us = outcome(outcome, own, Map.values(others), cut, healed)
    Map.new([healed: followed - healed] ++ us, fn {key, us} -> {key, us / 1000} end)
  end

  # Times in microseconds, or an exception.
  defp outcome(:moves, own, others, cut, healed) do
    lost = lost(own, cut, healed)
    {next, _us} = next(others, cut)
    next < healed || raise "no other member led before the end of the partition"
    starts = for %{leads: leads} <- others, lead <- leads, lead.first > cut, do: lead.from
    [next: next - cut, gap: Enum.min(starts) - cut - lost[:lead]] ++ lost
  end

  defp outcome(:none, own, others, cut, healed) do
    {next, _us} = next([own | others], cut)
    next > healed || raise "a member without a majority led"
    lost(own, cut, healed)
  end

  defp outcome(:stays, own, _others, cut, healed) do
    span(own.leads, cut).until > healed || raise "the leader has lost the lead"
    []
  end

  defp lost(own, cut, healed) do
    for {key, spans} <- [lead: own.leads, child: own.children] do
      until = span(spans, cut).until
      until < healed || raise "the old leader has kept its #{key}"
      {key, until - cut}
    end
  end

  defp span(spans, at), do: Enum.find(spans, &(&1.first < at and &1.until > at))

  defp cut(network, %{leader: leader}, :down), do: Network.interface(network, leader.n, "down")

  defp cut(network, members, cuts) do
    for {from, to} <- cuts,
        do: Network.command(network, "cut #{members[from].n} #{members[to].n}")
  end

  defp heal(network, %{leader: leader}, :down), do: Network.interface(network, leader.n, "up")
  defp heal(network, _members, _cuts), do: Network.command(network, "heal")

  # Output

  defp row(what, times, unit) do
    values = [Enum.min(times), Figures.percentile(times, 50), Enum.max(times)]
    cells = [what, to_string(length(times))] ++ Enum.map(values, &Figures.decimal(&1 / 1))
    IO.puts(Output.line(@columns, cells ++ [unit]))
  end
end
