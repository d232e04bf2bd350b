# Measures what `Sconce.Pressure` does for a load that changes, what a prefetch that follows its waits gains, and what messages
# of many segments gain:
#
#     mix run pressure.exs                       # all
#     mix run pressure.exs --objective 10        # milliseconds; default 12
#     mix run pressure.exs --only prefetch       # or serving, segments
#
# First a serving without an objective, one with it whose batch stays as it was opened, and one with it get the same load: bots that each ask at most 60 times a
# second, and leave a request out if the serving is busy. Their number follows the measured capacity of this machine: two
# fifths of it, twice as much as it, two fifths, and bursts of three times as much for half a second. Figures are those of each half second.
#
# Then a stream of batches feeds a consumer that takes them evenly, then in bursts of eight with a pause after each, and evenly
# again; with two prefetched batches, and with `prefetch: :auto`.
#
# At last a rollout of another VM of this machine sends segments to its learner here, one by one and in messages of many.

defmodule PressureBench do
  alias Sconce.Bench.{Machine, Output}
  alias Sconce.{Error, Policy, Serving, Session}

  @frame_us 16_667
  @slot_ms 500
  @spec_options [embedding: {:vector, 64}, backbone: :gru, hidden_size: 512, num_layers: 2] ++
                  [heads: [go: {:bernoulli, 8}]]

  def main(args) do
    {opts, []} = OptionParser.parse!(args, strict: [objective: :float, only: :string])
    IO.puts(Output.header(Machine.describe()))
    parts = [{"serving", fn -> load(opts[:objective] || 12.0) end}]
    parts = parts ++ [{"prefetch", &Prefetch.main/0}, {"segments", &Segments.main/0}]
    for {part, run} <- parts, opts[:only] in [nil, part], do: run.()
  end

  defp load(objective) do
    {:ok, policy} = Policy.init(@spec_options, seed: 1)
    capacity = capacity(policy)
    phases = phases(capacity)

    IO.puts(
      "\nGRU 512 x 2, one worker, lane :worker; capacity #{round(capacity)} decisions/s with 64 callers"
    )

    IO.puts(
      "objective #{objective} ms; bots at 60 Hz: #{Enum.map_join(phases, ", ", fn {bots, ms} -> "#{bots} for #{ms / 1000} s" end)}"
    )

    for {title, own, pinned} <- [
          {"without an objective", [], false},
          {"with objective_ms: #{objective}, the largest batch stays", [objective_ms: objective],
           true},
          {"with objective_ms: #{objective}", [objective_ms: objective], false}
        ] do
      IO.puts("\n#{title}\n\n" <> header())
      rows = run(policy, own, pinned, phases)
      for row <- rows, do: IO.puts(line(row, objective))
      IO.puts(summary(rows, objective))
    end
  end

  defp phases(capacity) do
    bots = fn share -> max(round(share * capacity / 60), 2) end
    low = bots.(0.4)
    bursts = for _ <- 1..4, phase <- [{bots.(3.0), 500}, {low, 1_000}], do: phase
    [{low, 3_000}, {bots.(2.0), 6_000}, {low, 3_000}] ++ bursts
  end

  defp serving(policy, own) do
    {:ok, serving} = Serving.start_link([policy: policy, lane: :worker, max_queue: 8_192] ++ own)
    serving
  end

  # Decisions a second of 64 callers without a pause, the best of several seconds: other work of the machine only lowers it.
  defp capacity(policy) do
    serving = serving(policy, [])

    callers =
      for seed <- 1..64 do
        spawn_link(fn ->
          {:ok, session} = Serving.open(serving, seed: seed)
          busy(session, row())
        end)
      end

    rates =
      for _ <- 1..8 do
        {:ok, %{answered: before}} = Serving.stats(serving)
        start = now_us()
        Process.sleep(1_000)
        {:ok, %{answered: after_it}} = Serving.stats(serving)
        1.0e6 * (after_it - before) / (now_us() - start)
      end

    for pid <- callers, do: Process.unlink(pid) && Process.exit(pid, :kill)
    Serving.stop(serving)
    Enum.max(rates)
  end

  defp busy(session, row) do
    {:ok, _} = Session.act(session, row)
    busy(session, row)
  end

  defp row, do: for(n <- 1..64, do: n / 64)

  # With an objective that no batch exceeds, the controller of the batch never moves it.
  defp pin(state),
    do: update_in(state, [:objective], &%{&1 | batch: %{&1.batch | objective: 1.0e12}})

  defp run(policy, own, pinned, phases) do
    serving = serving(policy, own)
    if pinned, do: :sys.replace_state(serving, &pin/1)
    most = phases |> Enum.map(&elem(&1, 0)) |> Enum.max()
    active = :counters.new(1, [])
    main = self()
    pids = for bot <- 1..most, do: spawn_link(fn -> bot(serving, bot, active, main) end)
    for _ <- pids, do: receive(do: (:open -> :ok))
    start = now_ms()
    sampler = Task.async(fn -> sample(serving, start, []) end)

    for pid <- pids, do: send(pid, {:start, start})

    for {bots, ms} <- phases do
      :counters.put(active, 1, bots)
      Process.sleep(ms)
    end

    :counters.put(active, 1, -1)
    calls = Enum.flat_map(pids, fn _ -> receive(do: ({:calls, calls} -> calls)) end)
    send(sampler.pid, :stop)
    limits = Task.await(sampler)
    Serving.stop(serving)
    rows(calls, limits, phases)
  end

  defp bot(serving, number, active, main) do
    {:ok, session} = Serving.open(serving, seed: number)
    send(main, :open)
    start = receive(do: ({:start, start} -> start))
    due = now_us() + :rand.uniform(@frame_us)
    send(main, {:calls, frames(session, number, active, row(), due, start, [])})
  end

  defp frames(session, number, active, row, due, start, calls) do
    wait = div(due - now_us(), 1_000)
    if wait > 0, do: Process.sleep(wait)

    case :counters.get(active, 1) do
      -1 ->
        calls

      bots when number > bots ->
        frames(session, number, active, row, now_us() + @frame_us, start, calls)

      _bots ->
        begun = now_us()

        outcome =
          case Session.act(session, row) do
            {:ok, _} -> now_us() - begun
            {:error, %Error{kind: :busy}} -> :busy
          end

        call = {div(div(begun, 1_000) - start, @slot_ms), outcome}
        # A late bot takes the next frame, and does not make up for those before.
        due = max(due + @frame_us, now_us())
        frames(session, number, active, row, due, start, [call | calls])
    end
  end

  defp sample(serving, start, limits) do
    {:ok, %{limit: limit, max_batch: batch}} = Serving.stats(serving)
    limits = [{div(now_ms() - start, @slot_ms), {limit, batch}} | limits]
    receive(do: (:stop -> Map.new(limits)), after: (50 -> sample(serving, start, limits)))
  end

  defp rows(calls, limits, phases) do
    slots = div(phases |> Enum.map(&elem(&1, 1)) |> Enum.sum(), @slot_ms)
    by_slot = Enum.group_by(calls, &elem(&1, 0), &elem(&1, 1))
    bots = for {bots, ms} <- phases, _ <- 1..div(ms, @slot_ms), do: bots

    for {slot, bots} <- Enum.zip(0..(slots - 1), bots) do
      outcomes = Map.get(by_slot, slot, [])
      {busy, times} = Enum.split_with(outcomes, &(&1 == :busy))
      times = Enum.sort(times)
      per_s = 1_000 / @slot_ms

      %{
        at: slot * @slot_ms / 1_000,
        bots: bots,
        answered: round(length(times) * per_s),
        busy: round(length(busy) * per_s),
        p50: at(times, 0.5),
        p99: at(times, 0.99),
        times: times,
        limit: limits[slot] || {nil, nil}
      }
    end
  end

  defp at([], _share), do: 0.0

  defp at(times, share),
    do: Enum.at(times, min(trunc(share * length(times)), length(times) - 1)) / 1_000

  defp header,
    do:
      "    s   bots  answers/s   busy/s   p50 ms   p99 ms  limit  batch  p99, a # for each 2 ms, | at the objective"

  defp line(row, objective) do
    width = &String.pad_leading(to_string(&1), &2)
    mark = round(objective / 2)
    bar = String.duplicate("#", min(round(row.p99 / 2), 60)) |> String.pad_trailing(mark)
    bar = String.slice(bar, 0, mark) <> "|" <> String.slice(bar, mark, 60)

    cells = [
      width.(row.at, 5),
      width.(row.bots, 7),
      width.(row.answered, 11),
      width.(row.busy, 9)
    ]

    cells = cells ++ [width.(Float.round(row.p50, 1), 9), width.(Float.round(row.p99, 1), 9)]
    {limit, batch} = row.limit
    Enum.join(cells ++ [width.(limit || "-", 7), width.(batch || "-", 7), "  ", bar])
  end

  defp summary(rows, objective) do
    times = rows |> Enum.flat_map(& &1.times) |> Enum.sort()
    within = Enum.count(times, &(&1 <= 1_000 * objective))
    seconds = length(rows) * @slot_ms / 1_000

    "in all: #{round(length(times) / seconds)} answers/s, #{round(within / seconds)} of them within the objective; " <>
      "p50 #{Float.round(at(times, 0.5), 1)} ms, p99 #{Float.round(at(times, 0.99), 1)} ms"
  end

  defp now_ms, do: System.monotonic_time(:millisecond)
  defp now_us, do: System.monotonic_time(:microsecond)
end

defmodule Prefetch do
  alias Sconce.{Corpus, Loader}

  @phases [even: 96, bursts: 192, even: 96]
  @burst 8
  @width 256

  def main do
    dir = Path.join(System.tmp_dir!(), "pressure-prefetch-#{System.pid()}")
    game = fn g -> for _ <- 1..2_000, n <- 1..@width, do: rem(g * n, 97) / 97 end
    games = for g <- 1..4, do: {game.(g), for(t <- 1..2_000, do: rem(t, 2))}

    {:ok, corpus} =
      Corpus.build({:vector, @width}, games, into: dir, heads: [go: {:bernoulli, 1}])

    make_us = make_us(corpus)
    even_us = round(1.5 * make_us)

    IO.puts(
      "\nBatches that take #{ms(make_us)} ms to make, one thread; one each #{ms(even_us)} ms, then in bursts of #{@burst}, then evenly\n"
    )

    IO.puts(
      "prefetch                even: waits, ms  bursts: waits, ms  even: waits, ms   depths"
    )

    for prefetch <- [2, :auto] do
      {waits, depths} = phases(corpus, prefetch, even_us)
      cells = for {calls, us} <- waits, do: String.pad_leading("#{calls}, #{ms(us)}", 18)
      IO.puts(String.pad_trailing(inspect(prefetch), 20) <> Enum.join(cells) <> "   " <> depths)
    end

    File.rm_rf!(dir)
  end

  defp stream(corpus, prefetch) do
    opts = [batch_size: 64, window_size: 60, stride: 7, epochs: :infinity, noise: 0.5]
    Loader.stream(corpus, [prefetch: prefetch, as: :binaries] ++ opts)
  end

  defp make_us(corpus) do
    flow = corpus |> stream(0) |> Enum.at(20) |> Map.fetch!(:flow)
    round(1.0e6 * flow.making_seconds / flow.batches)
  end

  # The waits of each phase: their number, those above 1 ms, and their sum.
  defp phases(corpus, prefetch, even_us) do
    total = @phases |> Keyword.values() |> Enum.sum()
    flows = corpus |> stream(prefetch) |> Stream.map(&taken(&1, even_us)) |> Enum.take(total + 1)
    waited = for [a, b] <- Enum.chunk_every(flows, 2, 1, :discard), do: waited_us(a, b)

    {waits, []} =
      Enum.map_reduce(@phases, waited, fn {_name, count}, left ->
        {own, left} = Enum.split(left, count)
        {{Enum.count(own, &(&1 > 1_000)), Enum.sum(own)}, left}
      end)

    {waits, flows |> Enum.map(& &1.prefetch) |> Enum.dedup() |> Enum.join(" ")}
  end

  defp waited_us(%{data_wait_seconds: before}, %{data_wait_seconds: waited}),
    do: round(1.0e6 * (waited - before))

  defp taken(%{step: step, flow: flow}, even_us) do
    {even, bursts} = {@phases[:even], @phases[:bursts]}
    burst? = step in even..(even + bursts - 1)

    cond do
      not burst? -> Process.sleep(div(even_us, 1_000))
      rem(step, @burst) == @burst - 1 -> Process.sleep(div(@burst * even_us, 1_000))
      true -> :ok
    end

    flow
  end

  defp ms(us), do: Float.round(us / 1_000, 1)
end

defmodule Segments do
  alias Sconce.{Native, Policy, Rollout, Serving, Session}
  alias Sconce.Rollout.Courier
  alias Sconce.Policy.Spec

  @host "127.0.0.1"
  @spec_options [embedding: {:vector, 64}, backbone: :mlp, hidden_sizes: [32], value_head: true] ++
                  [heads: [go: {:bernoulli, 8}]]
  @rounds 20

  def main do
    {_output, 0} = System.cmd("epmd", ["-daemon"])
    Process.sleep(500)
    {:ok, _pid} = Node.start(:"pressure-#{System.pid()}@#{@host}", :longnames)
    {:ok, policy} = Policy.init(@spec_options, seed: 1)
    segments = segments(policy)
    bytes = segments |> Enum.map(&byte_size/1) |> Enum.sum()
    count = length(segments)

    IO.puts(
      "\nSegments to a learner in another VM of this machine: #{count * @rounds} of #{div(bytes, count)} bytes\n"
    )

    IO.puts("                                     segments/s    MB/s")
    node = node!()

    for {title, opts} <- [
          {"one by one", [batch_bytes: 1, in_flight: 1]},
          {"1 MiB, one without an answer", [batch_bytes: 1_048_576, in_flight: 1]},
          {"1 MiB, four without an answer", [batch_bytes: 1_048_576, in_flight: 4]}
        ] do
      rates = for _ <- 1..3, do: rate(node, policy, segments, opts)
      rate = rates |> Enum.sort() |> Enum.at(1)
      mb = rate * bytes / count / 1.0e6

      IO.puts(
        String.pad_trailing(title, 34) <>
          String.pad_leading("#{round(rate)}", 13) <>
          String.pad_leading("#{Float.round(mb, 1)}", 8)
      )
    end
  end

  # Segments of 64 decisions.
  defp segments(policy) do
    {:ok, serving} = Serving.start_link(policy: policy)
    {:ok, rollout} = Rollout.start_link(serving: serving)
    {:ok, session} = Rollout.open(rollout, steps: 64)
    row = for n <- 1..64, do: n / 64
    for _ <- 1..(64 * 200), do: {:ok, _} = Session.act(session, row)
    {:ok, %{inbox: inbox}} = Rollout.source(rollout)
    {:ok, segments} = Native.inbox_take(inbox, 1_000)
    segments
  end

  # Segments a second from this VM to one there. All of them wait in the inbox when the courier starts.
  defp rate(node, policy, segments, opts) do
    native = Spec.to_native(policy.spec)
    {:ok, inbox} = Native.inbox_new(native, ["reward"], 100_000_000)
    for _ <- 1..@rounds, do: {:ok, _} = Native.inbox_offer(inbox, segments)
    total = @rounds * length(segments)
    there = :erpc.call(node, __MODULE__, :learner, [policy.spec |> Spec.portable()])
    start = System.monotonic_time(:microsecond)
    pressure = Sconce.Pressure.new(:network)
    options = [poll_ms: 20, pressure: pressure] ++ opts
    courier = Courier.start_link(inbox, there, options, :counters.new(1, []))
    wait(there, total)
    us = System.monotonic_time(:microsecond) - start
    Process.unlink(courier)
    Process.exit(courier, :kill)
    1.0e6 * total / us
  end

  defp wait(there, total) do
    {:ok, %{received: received}} = Rollout.info(there)
    unless received >= total, do: Process.sleep(2) && wait(there, total)
  end

  def learner(spec) do
    {:ok, policy} = Policy.init(Spec.new(spec), seed: 1)
    test = self()

    spawn(fn ->
      {:ok, serving} = Serving.start_link(policy: policy)
      {:ok, rollout} = Rollout.start_link(serving: serving, capacity: 100_000_000)
      send(test, {:rollout, rollout})
      Process.sleep(:infinity)
    end)

    receive(do: ({:rollout, rollout} -> rollout))
  end

  defp node! do
    paths = for path <- :code.get_path(), path != ~c".", arg <- [~c"-pa", path], do: arg
    name = :"pressure-learner-#{System.pid()}"
    cookie = Atom.to_charlist(Node.get_cookie())
    args = [~c"-setcookie", cookie | paths]
    options = %{name: name, host: String.to_charlist(@host), args: args, wait_boot: 120_000}
    {:ok, _peer, node} = :peer.start(options)
    {:ok, _} = :erpc.call(node, Application, :ensure_all_started, [:sconce])
    {module, binary, file} = :code.get_object_code(__MODULE__) |> or_compiled()
    {:module, _} = :erpc.call(node, :code, :load_binary, [module, file, binary])
    node
  end

  # A module of a script has no file.
  defp or_compiled(:error) do
    [{module, binary}] =
      for {module, binary} <- Code.compile_file(__ENV__.file),
          module == __MODULE__,
          do: {module, binary}

    {module, binary, ~c"pressure.exs"}
  end

  defp or_compiled(found), do: found
end

unless System.get_env("PRESSURE_LOADED") do
  System.put_env("PRESSURE_LOADED", "1")
  PressureBench.main(System.argv())
end
