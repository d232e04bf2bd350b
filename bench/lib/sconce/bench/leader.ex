defmodule Sconce.Bench.Leader do
  @moduledoc false
  # Times of a group of `Sconce.Leader` on three VMs of this machine; `leader.exs` describes them.

  alias Sconce.Bench.{Machine, Nodes, Output}
  alias Sconce.{Figures, Leader}
  alias Sconce.Leader.Member

  @switches [lease: :integer, kills: :integer, resignations: :integer, seconds: :integer]
  @defaults [lease: 2_000, kills: 20, resignations: 30, seconds: 20]
  @name :bench_leader
  @trips 20_000
  # Questions in flight of the throughput.
  @flight 64
  @wait_ms 120_000

  @columns [
    {"what", 46, :left},
    {"count", 7, :right},
    {"min", 9, :right},
    {"p50", 9, :right},
    {"p99", 9, :right},
    {"max", 9, :right},
    {"unit", 0, :left}
  ]

  def main(args) do
    {opts, []} = OptionParser.parse!(args, strict: @switches)
    opts = @defaults |> Keyword.merge(opts) |> Map.new()
    IO.puts(Output.header(Machine.describe()))
    Nodes.start!("sconce-leader")
    peers = for n <- 1..3, do: peer(n)
    nodes = Enum.map(peers, & &1.node)
    IO.puts("three VMs of this machine, loopback TCP; lease #{opts.lease} ms\n")
    IO.puts(Output.line(@columns, for({title, _width, _side} <- @columns, do: title)))
    controls(nodes)
    votes(nodes)
    renewals(nodes, opts)
    elections(nodes, opts)
    kills(peers, opts)
    for %{os_pid: os_pid} <- peers, do: kill(os_pid)
  end

  # VMs

  defp peer(n) do
    name = :"sconce-member#{n}-#{System.pid()}-#{System.unique_integer([:positive])}"
    cookie = Atom.to_charlist(Node.get_cookie())
    args = [~c"-connect_all", ~c"false", ~c"-setcookie", cookie | Nodes.paths()]

    options = %{
      name: name,
      host: String.to_charlist(Nodes.host()),
      args: args,
      wait_boot: @wait_ms
    }

    {:ok, _peer, node} = :peer.start(options)
    {:ok, _apps} = :erpc.call(node, Application, :ensure_all_started, [:sconce])
    :erpc.call(node, Logger, :configure, [[level: :error]])
    %{n: n, node: node, os_pid: :erpc.call(node, System, :pid, [])}
  end

  defp kill(os_pid), do: System.cmd("kill", ["-9", os_pid], stderr_to_stdout: true)

  defp on(node, function, args), do: :erpc.call(node, __MODULE__, function, args, :infinity)

  # A clock that all processes of the machine share, in microseconds.
  defp clock, do: :os.perf_counter(:nanosecond) / 1000

  # Controls

  defp controls([a, b, _c]) do
    on(b, :start_echo, [])
    row("control: message and back", on(a, :echo_times, [b, @trips, 0]), "us")
    row("control: message and back, 5 ms apart", on(a, :echo_times, [b, 2_000, 5]), "us")
    row("control: empty :erpc call", on(a, :erpc_times, [b]), "us")
  end

  def start_echo do
    caller = self()

    pid =
      spawn(fn ->
        Process.register(self(), :bench_echo)
        send(caller, {:ready, self()})
        echo()
      end)

    receive do: ({:ready, ^pid} -> :ok)
  end

  defp echo do
    receive do: ({from, n} -> send(from, n))
    echo()
  end

  def echo_times(node, count, pause_ms) do
    trip = fn n ->
      send({:bench_echo, node}, {self(), n})
      receive do: (^n -> :ok)
    end

    timed(trip, count, pause_ms)
  end

  def erpc_times(node), do: timed(fn _n -> :erpc.call(node, :erlang, :node, []) end)

  defp timed(work, count \\ @trips, pause_ms \\ 0) do
    for n <- 1..500, do: work.(n)

    for n <- 1..count do
      if pause_ms > 0, do: Process.sleep(pause_ms)
      start = clock()
      work.(n)
      clock() - start
    end
  end

  # Votes: a process in the place of a member asks another member.

  defp votes([a, b, _c]) do
    on(b, :start_member, [[name: :bench_votes, members: [a, b], lease_ms: 600_000]])
    on(b, :settle, [:bench_votes])
    row("one vote: asked, granted", on(a, :vote_times, [a, b, @trips]), "us")
    many = on(a, :vote_rate, [a, b])
    line("votes a second of one member, #{@flight} in flight", many, "votes/s")
    on(b, :stop_member, [:bench_votes])
  end

  def vote_times(a, b, count) do
    Process.register(self(), :bench_votes)
    {ask, digest} = question(a, b)

    vote = fn n ->
      ask.(n)
      answer(digest)
    end

    times = timed(vote, count)
    Process.unregister(:bench_votes)
    times
  end

  def vote_rate(a, b) do
    Process.register(self(), :bench_votes)
    {ask, digest} = question(a, b)
    for n <- 1..@flight, do: ask.(n)
    start = clock()

    for n <- 1..@trips do
      answer(digest)
      ask.(n)
    end

    seconds = (clock() - start) / 1.0e6
    for _n <- 1..@flight, do: answer(digest)
    Process.unregister(:bench_votes)
    round(@trips / seconds)
  end

  defp question(a, b) do
    config = %{members: [a, b], lease_us: 600_000_000, renew_us: 1, shutdown_us: 0, drift: 0.02}
    %{digest: digest} = Member.new(config, a, self(), 0)
    term = System.os_time(:microsecond)
    ask = &%{round: &1, term: term, leads?: true, work: nil}
    send = &send({:bench_votes, b}, {:sconce_leader, a, {:ask, digest, self(), ask.(&1)}})
    {send, digest}
  end

  defp answer(digest) do
    receive do
      {:sconce_leader, _b, {:granted, _id, _round}} -> :ok
      # The member asks this process, too.
      {:sconce_leader, _b, {:ask, ^digest, _id, _ask}} -> answer(digest)
      {:sconce_leader, _b, {:release, _id, _round}} -> answer(digest)
    end
  end

  # Renewals

  defp renewals(nodes, opts) do
    for node <- nodes, do: on(node, :start_member, [own(nodes, opts, renew_ms: 5)])
    leader = agreed(nodes)
    Process.sleep(opts.seconds * 1000)
    %{round_trips_us: times} = on(leader, :status, [])

    cells = [
      "renewal: asked, granted by another (5 ms apart)",
      times.count,
      "-",
      times.p50,
      times.p99
    ]

    IO.puts(Output.line(@columns, Enum.map(cells ++ [times.max, "us"], &to_string/1)))
    for node <- nodes, do: on(node, :stop_member, [@name])
  end

  defp own(nodes, opts, more \\ []),
    do: [name: @name, members: nodes, lease_ms: opts.lease] ++ more

  def status, do: Leader.status(@name)

  def start_member(opts) do
    {:ok, pid} = Supervisor.start_child(Sconce.Supervisor, {Leader, opts})
    pid
  end

  def stop_member(name) do
    Supervisor.terminate_child(Sconce.Supervisor, {Leader, name})
    Supervisor.delete_child(Sconce.Supervisor, {Leader, name})
  end

  # There was no member before.
  def settle(name) do
    :sys.replace_state(name, fn %{member: m} = state ->
      now = System.monotonic_time(:microsecond)
      %{state | member: %{m | vote: %{m.vote | quiet_until: now}}}
    end)

    :ok
  end

  # Elections: events of all members come to this process with the time at which a process beside the member had them.

  defp elections(nodes, opts) do
    begun = clock()
    for node <- nodes, do: on(node, :start_watched, [own(nodes, opts), self()])
    {at, _node, term, us} = elected(begun)
    line("start of all members to a leader", round((at - begun) / 1000), "ms")

    {times, elections, _term} =
      Enum.reduce(1..opts.resignations, {[], [us], term}, fn _n, {times, elections, term} ->
        # The one that has resigned before asks again.
        Process.sleep(opts.lease)
        leader = agreed(nodes)
        begun = clock()
        :ok = on(leader, :resign, [])
        {at, _node, next, us} = elected(begun)
        next > term || raise "term #{next} after #{term}"
        {[(at - begun) / 1000 | times], [us | elections], next}
      end)

    row("resigned to the next leader", times, "ms")
    row("election: asked, votes of a majority", elections, "us")
  end

  def resign, do: Leader.resign(@name)

  def start_watched(opts, test) do
    start_member(opts)

    spawn(fn ->
      :ok = Leader.subscribe(@name)
      watch(test)
    end)
  end

  defp watch(test) do
    receive do
      {:sconce_leader, @name, event} -> send(test, {:event, clock(), node(), event})
    end

    watch(test)
  end

  # The first election after a time: on a busy machine there may be others before.
  defp elected(since) do
    receive do
      {:event, at, node, %{event: :elected, term: term, election_us: us}} when at > since ->
        {at, node, term, us}
    after
      @wait_ms -> raise "no leader was elected"
    end
  end

  # Waits until all nodes know the same leader.
  defp agreed(nodes) do
    case nodes |> Enum.map(&on(&1, :known, [])) |> Enum.uniq() do
      [{:ok, leader}] -> leader
      _not_yet -> Process.sleep(1) && agreed(nodes)
    end
  end

  def known, do: Leader.leader(@name)

  # Kills: the group of the elections goes on, and each killed VM is replaced by a new group.

  defp kills(peers, opts) do
    for %{node: node} <- peers, do: on(node, :stop_member, [@name])

    times =
      for _n <- 1..opts.kills do
        flush()
        peers = Process.get(:peers, peers)
        nodes = Enum.map(peers, & &1.node)
        for node <- nodes, do: on(node, :start_watched, [own(nodes, opts), self()])
        {_at, _node, term, _us} = elected(0)
        leader = agreed(nodes)
        # At any time between two renewals.
        Process.sleep(:rand.uniform(div(opts.lease, 5)) + div(opts.lease, 2))
        victim = Enum.find(peers, &(&1.node == leader))
        begun = clock()
        kill(victim.os_pid)
        {at, _next, next, _us} = elected(begun)
        next > term || raise "term #{next} after #{term}"
        rest = List.delete(peers, victim)
        for %{node: node} <- rest, do: on(node, :stop_member, [@name])
        Process.put(:peers, [peer(victim.n) | rest])
        (at - begun) / 1000
      end

    row("kill -9 of the leader to the next one", times, "ms")
    for %{os_pid: os_pid} <- Process.get(:peers), do: kill(os_pid)
  end

  defp flush do
    receive do
      {:event, _at, _node, _event} -> flush()
    after
      0 -> :ok
    end
  end

  # Output

  defp row(what, times, unit) do
    quantiles = [Enum.min(times)] ++ for(p <- [50, 99], do: Figures.percentile(times, p))
    cells = [what, to_string(length(times))] ++ Enum.map(quantiles ++ [Enum.max(times)], &shown/1)
    IO.puts(Output.line(@columns, cells ++ [unit]))
  end

  defp line(what, value, unit),
    do: IO.puts(Output.line(@columns, [what, "", "", shown(value), "", "", unit]))

  defp shown(value) when is_integer(value), do: to_string(value)
  defp shown(value), do: Figures.decimal(value)
end
