# Measures one policy shared by many processes through `Sconce.Serving`:
#
#     mix run serving.exs                                   # 64 callers, as fast as they can
#     mix run serving.exs --weights int8 --workers 2
#     mix run serving.exs --lane worker                     # steps on a worker even if inline is faster
#     peers/run.py peers.json --threads 2 --only serve_ && \
#       SCONCE_REPLAYS=replays mix run serving.exs --peers peers.json --seconds 4
#     SCONCE_REPLAYS=replays mix run serving.exs --games 8 --deadline 4 --minutes 10 --policy gru
#
# Each caller has its own session, and sends a request when it has the answer to the last one. Times are
# those of whole calls: `act struct` from a frame struct to an action, `act row` from a packed frame to an
# action, and `forward` from a row and a state that the caller keeps to logits and a state, as the peers of
# `peers/serve.py` do. `no serving` is `act row` with unbatched sessions that each caller owns. The fastest
# peer with threads and the fastest of all are shown beside.
#
# With `--games N`, N processes act at 60 frames a second, each call with a deadline. A call misses if it
# returns a deadline error or takes longer than the deadline. Meanwhile as many idle processes are woken at
# the same pace; their lateness shows the influence of the machine.

for name <- ~w(latency policies), do: Code.require_file("#{name}.exs", __DIR__)

defmodule ServingBench do
  alias Sconce.Bench.{Frames, Machine, Output, Peers}
  alias Sconce.{Error, Figures, Frame, Serving, Session}

  @defaults [callers: 64, seconds: 4.0, deadline: 4, minutes: 10.0, policy: "gru"] ++
              [workers: 1, weights: "f32", lane: "auto"]
  @switches [callers: :integer, seconds: :float, workers: :integer, weights: :string] ++
              [lane: :string] ++
              [
                games: :integer,
                deadline: :integer,
                minutes: :float,
                policy: :string,
                peers: :string
              ]
  @warm_ms 1000
  # Maximum recorded calls per second of one caller.
  @room 20_000
  @frame_ns 16_666_667
  @percents [50, 95, 99, 99.9, 100]

  @columns [
    {"policy", 6, :left},
    {"call", 10, :left},
    {"lane", 6, :left},
    {"req/s", 9, :right},
    {"p50", 8, :right},
    {"p95", 8, :right},
    {"p99", 8, :right},
    {"p99.9", 8, :right},
    {"most", 8, :right},
    {"batch", 6, :right},
    {"beside", 0, :left}
  ]

  def main(args) do
    {opts, []} = OptionParser.parse!(args, strict: @switches)
    opts = @defaults |> Keyword.merge(opts) |> Map.new()
    IO.puts(Output.header(Machine.describe()))
    if opts[:games], do: games(opts), else: throughput(opts)
  end

  # As fast as they can

  defp start(name, opts) do
    weights =
      Enum.find([:f32, :bf16, :int8], &(to_string(&1) == opts.weights)) || raise "--weights"

    lane = Enum.find([:auto, :inline, :worker], &(to_string(&1) == opts.lane)) || raise "--lane"
    options = [policy: Policies.init!(name), workers: opts.workers, weights: weights, lane: lane]
    Serving.start_link(options)
  end

  defp throughput(opts) do
    peers = if opts[:peers], do: Machine.value!(Peers.read(opts.peers)), else: []
    {_frames, origin} = Frames.sequence()
    how = "#{opts.workers} workers, weights in #{opts.weights}"
    IO.puts("#{opts.callers} callers, #{how}, #{origin} frames; times in us\n")
    IO.puts(Output.line(@columns, for({title, _width, _side} <- @columns, do: title)))

    for name <- Policies.names(), call <- ["act struct", "act row", "forward", "no serving"] do
      {:ok, serving} = start(name, opts)
      {:ok, info} = Serving.info(serving)
      found = callers(info, call, opts)
      {:ok, stats} = Serving.stats(serving)
      :ok = Serving.stop(serving)
      lane = if call == "forward", do: :worker, else: info.lane
      lane = if call == "no serving", do: "", else: to_string(lane)
      IO.puts(line({name, call, lane}, found, stats, peers, opts))
    end
  end

  defp callers(serving, call, opts) do
    now = System.monotonic_time(:nanosecond)
    from = now + @warm_ms * 1_000_000
    until = from + round(opts.seconds * 1.0e9)
    room = round(opts.seconds * @room)

    1..opts.callers
    |> Enum.map(fn i -> Task.async(fn -> caller(serving, call, i, from, until, room) end) end)
    |> Task.await_many(:infinity)
    |> Enum.concat()
    |> Enum.sort()
  end

  defp caller(serving, call, i, from, until, room) do
    times = Latency.new(room)
    {ask, first} = asking(serving, call, i)
    calls = ask_on(ask, first, i, from, until, times)
    calls > 0 || raise "nothing was asked"
    Latency.sorted(times)
  end

  # Returns a function of the frame's index and the result of the previous call.
  defp asking(serving, "forward", _i) do
    rows = rows()

    ask = fn n, state ->
      {:ok, %{logits: <<_, _::binary>>, state: state}} =
        Serving.forward(serving, at(rows, n), state)

      state
    end

    {ask, nil}
  end

  defp asking(serving, call, i) do
    {:ok, session} =
      if call == "no serving",
        do: Session.open(serving.policy, seed: i, weights: serving.weights),
        else: Serving.open(serving, seed: i)

    {structs, _origin} = Frames.sequence()
    frames = if call in ["act row", "no serving"], do: rows(), else: structs

    ask = fn n, calls ->
      # The session sees its frames in order, and none is lost.
      {:ok, %{frame: frame}} = Session.act(session, at(frames, n))
      ^frame = calls + 1
    end

    {ask, 0}
  end

  defp at(frames, n), do: elem(frames, rem(n, tuple_size(frames)))

  defp rows do
    with nil <- :persistent_term.get({__MODULE__, :rows}, nil) do
      {structs, _origin} = Frames.sequence()
      rows = for frame <- Tuple.to_list(structs), do: Machine.value!(Frame.pack(frame))
      :persistent_term.put({__MODULE__, :rows}, List.to_tuple(rows))
      :persistent_term.get({__MODULE__, :rows})
    end
  end

  defp ask_on(ask, left, n, from, until, times, calls \\ 0) do
    start = System.monotonic_time(:nanosecond)

    if start < until do
      left = ask.(n, left)
      if start >= from, do: Latency.add(times, System.monotonic_time(:nanosecond) - start)
      ask_on(ask, left, n + 1, from, until, times, calls + 1)
    else
      calls
    end
  end

  defp line({name, call, lane}, found, stats, peers, opts) do
    rate = length(found) / opts.seconds
    times = Latency.percentiles(found, @percents)
    cells = [to_string(name), call, lane, Figures.grouped(round(rate))]
    times = Enum.map(times, &Latency.cell(&1, :us))
    batch = Latency.cell(stats.batch_size && stats.batch_size.mean, :us)
    Output.line(@columns, cells ++ times ++ [batch, beside(name, rate, peers)])
  end

  defp beside(name, rate, peers) do
    mine = Enum.filter(peers, &(&1["case"] == "serve_#{name}"))
    threaded = Enum.filter(mine, &String.starts_with?(&1["peer"], "threads"))

    [threaded, mine]
    |> Enum.map(&Enum.max_by(&1, fn peer -> peer["req_s"] end, fn -> nil end))
    |> Enum.uniq()
    |> Enum.reject(&is_nil/1)
    |> Enum.map_join("; ", fn %{"peer" => peer, "req_s" => theirs, "p99_us" => p99} ->
      "#{Float.round(rate / theirs, 2)} of #{peer}, #{Figures.grouped(theirs)} req/s, p99 #{round(p99)}"
    end)
  end

  # Games at their pace

  defp games(opts) do
    name = String.to_existing_atom(opts.policy)
    {:ok, serving} = start(name, opts)
    {:ok, info} = Serving.info(serving)
    frames = round(opts.minutes * 60 * 1.0e9 / @frame_ns)

    IO.puts(
      "#{opts.games} games of #{opts.policy}, deadline #{opts.deadline} ms, #{frames} frames each\n"
    )

    # Half a second to start all processes.
    start = System.monotonic_time(:nanosecond) + 500_000_000

    # Each process starts at its own moment within a frame.
    watched =
      for kind <- [:game, :control], i <- 1..opts.games do
        begins = start + div(@frame_ns * i, opts.games)
        {kind, Task.async(fn -> watch(kind, info, i, begins, frames, opts) end)}
      end

    found = for {kind, task} <- watched, do: {kind, Task.await(task, :infinity)}
    {:ok, stats} = Serving.stats(serving)
    :ok = Serving.stop(serving)
    report(for({:game, game} <- found, do: game), for({:control, c} <- found, do: c), stats, opts)
  end

  defp watch(:control, _serving, _i, begins, frames, _opts) do
    late = Latency.new(frames)
    for n <- 0..(frames - 1), do: Latency.add(late, wait(begins + n * @frame_ns))
    %{late: Latency.sorted(late)}
  end

  defp watch(:game, serving, i, begins, frames, opts) do
    {:ok, session} = Serving.open(serving, seed: i)
    {shown, _origin} = Frames.sequence()
    # The first call also processes a window of sixty steps.
    {:ok, _action} = Session.act(session, at(shown, i))
    [took, late] = [Latency.new(frames), Latency.new(frames)]

    misses =
      for n <- 1..frames do
        Latency.add(late, wait(begins + n * @frame_ns))
        start = System.monotonic_time(:nanosecond)
        answer = Session.act(session, at(shown, i + n), deadline_ms: opts.deadline)
        ns = System.monotonic_time(:nanosecond) - start
        Latency.add(took, ns)
        missed?(answer, ns, opts.deadline)
      end

    %{took: Latency.sorted(took), late: Latency.sorted(late), misses: Enum.count(misses, & &1)}
  end

  defp missed?({:ok, _action}, ns, deadline), do: ns > deadline * 1_000_000
  defp missed?({:error, %Error{kind: :deadline}}, _ns, _deadline), do: true
  # The step of a call that gave up is still in flight.
  defp missed?({:error, %Error{kind: :busy}}, _ns, _deadline), do: true

  # Waits for a moment, rounded up to the milliseconds of timers. Returns how late it woke.
  defp wait(due) do
    ms = div(due + 999_999, 1_000_000)
    :erlang.start_timer(ms, self(), :frame, abs: true)

    receive do:
              ({:timeout, _timer, :frame} -> System.monotonic_time(:nanosecond) - ms * 1_000_000)
  end

  defp report(games, controls, stats, opts) do
    all = fn maps, key -> maps |> Enum.flat_map(&Map.fetch!(&1, key)) |> Enum.sort() end
    took = all.(games, :took)
    misses = games |> Enum.map(& &1.misses) |> Enum.sum()

    for {text, times} <- [
          {"a decision", took},
          {"games woken late", all.(games, :late)},
          {"control woken late", all.(controls, :late)}
        ],
        do: IO.puts(summary(text, times))

    beyond = Enum.count(took, &(&1 > (opts.deadline + 5) * 1000))
    most = controls |> all.(:late) |> Enum.count(&(&1 > opts.deadline * 1000))

    IO.puts(
      "\n#{misses} of #{Figures.grouped(length(took))} decisions missed #{opts.deadline} ms, "
    )

    IO.puts("#{beyond} of them took more than 5 ms longer; the control was late by more than")

    IO.puts(
      "#{opts.deadline} ms #{most} times. Batches of #{Latency.cell(stats.batch_size.mean, :us)}.\n"
    )

    IO.puts(Latency.histogram(took))
  end

  defp summary(text, times) do
    cells = times |> Latency.percentiles(@percents) |> Enum.map(&Latency.cell(&1, :us))

    numbers =
      for {name, cell} <- Enum.zip(~w(p50 p95 p99 p99.9 most), cells),
          do: "#{name} #{String.pad_leading(cell, 8)}"

    "#{String.pad_trailing(text, 20)}#{Enum.join(numbers, "  ")} us"
  end
end

ServingBench.main(System.argv())
