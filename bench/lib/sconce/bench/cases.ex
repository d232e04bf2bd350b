defmodule Sconce.Bench.Cases do
  @moduledoc false
  # The cases of `mix bench`.

  alias Sconce.Bench.{Case, Frames, Machine, Resident}
  alias Sconce.{Action, Corpus, Figures, Frame, Loader, Native, Policy, Session}
  alias Sconce.Policy.Spec

  @window 60
  @rows 256
  @seed 1

  # Shapes that the peers also have.
  @heads [head_hidden_size: 0]
  @mlp [backbone: :mlp, hidden_sizes: [512, 512], layer_norm: true] ++ @heads
  @plain [layer_norm: false, input_norm: false] ++ @heads
  @backbones [
    {"mlp 512 512", @mlp},
    {"gru 256x2", [backbone: :gru, hidden_size: 256, num_layers: 2] ++ @plain},
    {"lstm 256x2", [backbone: :lstm, hidden_size: 256, num_layers: 2] ++ @plain},
    {"mamba 256x2", [backbone: :mamba, input_norm: false] ++ @heads},
    {"sliding_window 256x2",
     [backbone: :sliding_window, input_norm: false, qk_layernorm: false] ++ @heads}
  ]
  @packed {:melee, layout: :packed}
  # The default options of a run, with the heads that play best.
  @usual [backbone: :gru, heads: :autoregressive, prior: true, dropout: 0.3, input_dropout: 0.3]

  @doc "All cases, with one thread and with `threads`."
  @spec all(pos_integer) :: [Case.t()]
  def all(threads) do
    threads = Enum.uniq([1, threads])

    Enum.concat([
      controls(),
      frames(),
      acts(),
      trains(threads),
      forwards(threads),
      loads(threads),
      imports(List.last(threads))
    ])
  end

  # Controls

  defp controls do
    [
      control("NIF, no-op", &Native.bench_noop/0, fn _ -> {nil, "the control of all rows"} end),
      control("dirty NIF, no-op", &Native.bench_dirty/0, &beside(&1, "two thread switches")),
      control("worker, no-op by message", &worker/0, &beside(&1, "a queue, a thread, a message"))
    ]
  end

  defp beside(_measured, what), do: Machine.control(what)

  defp worker do
    true = Machine.answer(&Native.bench_worker/1)
    :ok
  end

  defp control(text, fun, limit) do
    bench("call", text, 1, 1, limit, fn budget ->
      {us, :ok} = Case.time(fun, budget)
      {us, %{}}
    end)
  end

  # Frames

  defp frames do
    learned = Spec.new(heads: :independent)
    packed = Spec.new(embedding: @packed)

    [
      bench("frame", "pack a struct in Elixir", 1, 1, &packed_bytes/1, fn budget ->
        frame = Frames.made(1)
        {us, {:ok, row}} = Case.time(fn -> Frame.pack(frame) end, budget)
        check(byte_size(row) == row_bytes(), "a row of #{byte_size(row)} bytes")
        {us, %{}}
      end),
      native_frames("frame", "read a packed row, us a frame", learned, :read_us),
      native_frames("embed", "learned, us a frame", learned, :embed_us),
      native_frames("embed", "packed 288, us a frame", packed, :embed_us)
    ]
  end

  defp packed_bytes(_measured), do: Machine.bytes(row_bytes(), 1, "a row written")

  defp native_frames(name, text, spec, field) do
    limit = fn %{extra: extra} ->
      Machine.bytes(extra.bytes, 1, "a row read, #{extra.width} numbers written")
    end

    bench(name, text, @rows, 1, limit, fn budget ->
      rows = for i <- 1..@rows, into: <<>>, do: Machine.value!(Frame.pack(Frames.made(i)))
      native = Spec.to_native(spec)
      times = Machine.answer(&Native.bench_frames(&1, native, rows, budget))
      {columns, ids} = embedded(spec)
      check({times.width, times.ids} == {columns, ids}, "#{times.width} numbers of a frame")
      width = if field == :read_us, do: length(Frame.columns()), else: columns + ids
      bytes = row_bytes() + 4 * width
      {Enum.map(Map.fetch!(times, field), &(&1 / @rows)), %{width: width, bytes: bytes}}
    end)
  end

  # Counts the continuous values and ids of a frame, with a function other than the measured one.
  defp embedded(spec) do
    {:ok, row} = Frame.pack(Frames.made(1))
    embedding = Spec.to_native(spec).embedding
    {continuous, ids} = Machine.value!(Native.embed(embedding, row))
    {div(byte_size(continuous), 4), length(ids)}
  end

  defp row_bytes, do: 4 * length(Frame.columns())

  # Acting

  @formats [:f32, :bf16, :int8, :int4]
  # Enough calls that about ten lie above the p99.9.
  @calls 10_000
  @windows 100

  @doc "The formats in which a packed policy can keep its matrices."
  @spec formats() :: [atom]
  def formats, do: @formats

  defp acts do
    for {layout, embedding} <- [{"learned", :melee}, {"packed 288", @packed}],
        {text, backbone} <- @backbones,
        {mode, weights} <- ways(backbone[:backbone]) do
      spec = Spec.new([embedding: embedding] ++ backbone)
      act("#{text}, #{layout}, #{way_text(mode, weights)}", spec, mode, weights)
    end
  end

  # A policy without memory works the same in both modes. Window mode uses the policy's own ops.
  defp ways(:mlp), do: for(weights <- @formats, do: {:carry, weights})
  defp ways(_recurrent), do: ways(:mlp) ++ [{:window, :f32}]

  defp way_text(:window, :f32), do: "window of #{@window}"
  defp way_text(:carry, :f32), do: "one frame"
  defp way_text(:carry, weights), do: "one frame, #{weights}"

  defp act(text, spec, mode, weights) do
    opts = [mode: mode, weights: weights]
    bench("act", text, 1, 1, &act_limit(&1, mode), &decisions(spec, opts, &1))
  end

  @doc """
  Microseconds of decisions of a new policy, each timed alone from the frame struct to the action, and the
  sizes of the weights that a decision reads. `opts` are the session options `mode` and `weights`.
  """
  @spec decisions(Spec.t(), keyword, float) :: {[float], map}
  def decisions(spec, opts, budget) do
    policy = Machine.value!(Policy.init(spec, seed: @seed))
    session = Machine.value!(Session.open(policy, [window_size: @window, seed: @seed] ++ opts))
    {frames, origin} = Frames.sequence()
    least = if opts[:mode] == :window, do: @windows, else: @calls
    {us, last} = Case.time_each(frames, &Session.act(session, &1), budget, least)
    playable!(last)
    {:ok, info} = Session.info(session)
    {:ok, memory} = Session.snapshot(session)
    lane = if opts[:mode] == :window, do: info.window_lane, else: info.lane
    :ok = Session.close(session)
    how = %{lane: lane, path: info.path, format: info.weights, frames: origin}

    rates =
      "#{info.path} #{info.weights}, #{lane} lane, #{origin} frames, " <>
        "p99 #{of_median(us, 99)} and p99.9 #{of_median(us, 99.9)} times the median"

    {us,
     policy
     |> sizes(Map.new(info.matrices, &{&1.name, &1.weights}))
     |> Map.merge(how)
     |> Map.merge(%{rates: rates, bytes: info.bytes})
     |> Map.merge(%{memory_bytes: byte_size(memory), exponentials: exponentials(spec)})}
  end

  # Exponentials of one frame.
  defp exponentials(spec),
    do: hd(timed(&Native.bench_forward/3, spec, %{steps(1, 1, 1) | min_steps: 1}).exponentials)

  defp of_median(us, percent) do
    Figures.decimal(Figures.percentile(us, percent) / Figures.percentile(us, 50))
  end

  defp act_limit(%{extra: extra}, :carry) do
    read = extra.read_bytes + extra.memory_bytes
    bytes = Machine.bytes(read, 1, "all weights and the memory read once")
    max(bytes, Machine.exponentials(extra.exponentials, 1, "one frame"))
  end

  # All frames are multiplied at once, but a recurrent cell reads its weights for each frame.
  defp act_limit(%{extra: extra}, :window) do
    flops = 2 * (@window * extra.backbone + extra.heads)
    products = Machine.flops(flops, 1, "products of #{@window} frames")

    case extra do
      %{recurrent: n} -> max(products, Machine.bytes(4 * n, 1, "recurrent weights read", @window))
      _no_cell -> products
    end
  end

  # Counts the values in the matrices and vectors that a decision reads, and their bytes. Tables are left out,
  # because a decision reads only some of their rows.
  defp sizes(policy, formats) do
    counted =
      for {name, shape} <- Machine.value!(Policy.weights(policy)),
          part <- parts(name),
          do: {part, Tuple.product(shape), bytes(shape, formats[name])}

    counts =
      for {part, group} <- Enum.group_by(counted, &elem(&1, 0)),
          into: %{},
          do: {part, group |> Enum.map(&elem(&1, 1)) |> Enum.sum()}

    read = for {part, _count, bytes} <- counted, part in [:backbone, :heads], do: bytes
    Map.merge(counts, %{weights: policy.num_weights, read_bytes: Enum.sum(read)})
  end

  # In int8 each row has a scale of four bytes, and in int4 each 32 columns of a row.
  defp bytes({rows, columns}, :int4), do: rows * (div(columns + 1, 2) + 4 * div(columns + 31, 32))
  defp bytes({rows, columns}, :int8), do: rows * (columns + 4)
  defp bytes({rows, columns}, :bf16), do: 2 * rows * columns
  defp bytes(shape, _format), do: 4 * Tuple.product(shape)

  defp parts("backbone.weight_hh" <> _), do: [:backbone, :recurrent]
  defp parts("backbone." <> _), do: [:backbone]
  defp parts("heads.prior." <> _), do: []
  defp parts("heads." <> _), do: [:heads]
  defp parts(_table), do: []

  defp playable!({:ok, %Action{} = action}) do
    %{main_stick: main, c_stick: c, shoulder: shoulder, confidence: confidence} = action
    numbers = [main.x, main.y, c.x, c.y, shoulder | Map.values(confidence)]
    check(Enum.all?(numbers, &(&1 >= 0 and &1 <= 1)), "out of range: #{inspect(action)}")
    check(Enum.all?(Map.values(action.buttons), &is_boolean/1), "buttons: #{inspect(action)}")
  end

  defp playable!({:error, error}), do: raise(error)

  # Training

  defp trains(threads) do
    peers = for {text, backbone} <- @backbones, do: {text <> ", packed 288", @packed, backbone}
    usual = {"gru 256x2, learned, autoregr., dropout .3", :melee, @usual}

    for {text, embedding, backbone} <- peers ++ [usual], n <- threads do
      no_dropout = [dropout: 0.0, input_dropout: 0.0]
      options = Keyword.merge(no_dropout, [embedding: embedding] ++ backbone)
      train(text, Spec.new(options), n)
    end
  end

  defp train(text, spec, threads) do
    {batch, window} = if elem(spec.backbone, 0) == :mlp, do: {256, 1}, else: {32, @window}
    steps = steps(batch, window, threads)

    limit = fn %{extra: %{flops: flops, exponentials: exponentials}} ->
      Machine.flops(flops, exponentials, threads, "forward and backward")
    end

    bench("train", text, batch, threads, limit, fn budget ->
      {us, extra} = training(spec, %{steps | seconds: budget})
      rate = Figures.decimal(batch * window / Figures.percentile(us, 50) * 1000)
      peak = Resident.peak(spec, steps)
      {us, %{extra | rates: "#{rate} k frames/s, #{extra.rates}"} |> Map.put(:peak_bytes, peak)}
    end)
  end

  @doc "Microseconds of training steps. The loss must fall."
  @spec training(Spec.t(), map) :: {[float], map}
  def training(spec, steps) do
    times = timed(&Native.bench_train/3, spec, steps)
    check(is_float(times.last_loss), "the loss is not a number")
    check(times.last_loss < times.first_loss, "the loss did not fall: #{losses(times)}")
    # A product has two gradients, and each costs as much as the product.
    extra = Map.take(times, [:weights, :first_loss, :last_loss])
    flops = 6 * times.multiply_adds
    made = %{flops: flops, exponentials: Enum.sum(times.exponentials)}
    {times.us, extra |> Map.merge(made) |> Map.put(:rates, "loss #{losses(times)}")}
  end

  # Times forwards of whole windows, from an empty memory to the trunk vectors of all frames.
  defp forwards(threads) do
    for {text, backbone} <- @backbones,
        backbone[:backbone] != :mlp,
        batch <- [1, 32],
        n <- threads do
      spec = Spec.new([embedding: @packed] ++ backbone)

      limit = fn %{extra: %{flops: flops, exponentials: exponentials}} ->
        Machine.flops(flops, exponentials, n, "all frames")
      end

      bench("forward", "#{text}, packed 288", batch, n, limit, fn budget ->
        steps = %{steps(batch, @window, n) | seconds: budget}
        times = timed(&Native.bench_forward/3, spec, steps)
        check(times.last_loss == times.first_loss, "a sum of #{losses(times)}")
        made = %{flops: 2 * times.multiply_adds, exponentials: hd(times.exponentials)}
        {times.us, Map.put(made, :weights, times.weights)}
      end)
    end
  end

  @doc "Sizes of the work for `Sconce.Native.bench_train/3` and related functions."
  @spec steps(pos_integer, pos_integer, pos_integer) :: map
  def steps(batch, window, threads),
    do: %{batch: batch, window: window, threads: threads, seed: @seed, min_steps: 5, seconds: 0.0}

  defp timed(work, spec, steps) do
    native = Spec.to_native(spec)
    Machine.answer(&work.(&1, native, steps))
  end

  defp losses(times),
    do: "#{Float.round(times.first_loss, 2)} to #{Float.round(times.last_loss, 2)}"

  # Loading: windows are drawn, embedded, augmented and delivered to a consumer that takes them at once.

  @augmented [mirror: 0.5, noise: 0.3, previous_dropout: 0.1, frame_delay_max: 18]

  defp loads(threads) do
    for {text, opts} <- [{"packed 288", []}, {"packed 288, augmented", @augmented}],
        {batch, window} <- [{256, 1}, {32, @window}],
        n <- threads,
        do: load("#{text}, windows of #{window}", batch, window, n, opts)
  end

  defp load(text, batch, window, threads, opts) do
    limit = fn %{extra: extra} ->
      Machine.bytes(extra.bytes, threads, "columns read, a batch written")
    end

    bench("load", text, batch, threads, limit, fn budget ->
      Frames.scratched(fn scratch ->
        opts =
          [batch_size: batch, window_size: window, stride: window, embedding: @packed] ++
            [epochs: :infinity, as: :binaries, prefetch: 2 * threads, loader_threads: threads] ++
            opts

        corpus = load_corpus(scratch)
        {us, last} = corpus |> Loader.stream(opts) |> batch_times(budget)
        check(last.states.shape == {batch, window, 288}, "states #{inspect(last.states.shape)}")
        {us, load_rates(us, batch * window, corpus, last.flow, threads, budget)}
      end)
    end)
  end

  defp load_corpus(scratch) do
    paths =
      case System.get_env("SCONCE_REPLAYS") do
        nil -> Frames.make_games(Path.join(scratch, "games"))
        dir -> Frames.replays(dir)
      end

    into = Path.join(scratch, "corpus")
    Machine.value!(Corpus.import(paths, into: into, progress: false))
  end

  # Microseconds per batch, and the last batch. Batches of several threads arrive together, so groups of
  # batches are timed.
  @together 8

  defp batch_times(stream, seconds) do
    until = System.monotonic_time(:microsecond) + round(seconds * 1.0e6)

    {stamps, last} =
      stream
      |> Stream.chunk_every(@together)
      |> Enum.reduce_while({[], nil}, fn batches, {stamps, _last} ->
        now = System.monotonic_time(:nanosecond)
        going? = div(now, 1000) < until or length(stamps) < 5
        {if(going?, do: :cont, else: :halt), {[now | stamps], List.last(batches)}}
      end)

    times =
      for {later, before} <- Enum.zip(stamps, tl(stamps)),
          do: (later - before) / 1000 / @together

    {times, last}
  end

  defp load_rates(us, rows, corpus, flow, threads, budget) do
    rate = rows / Figures.percentile(us, 50) * 1.0e6
    written = div(flow.bytes, flow.batches)
    read = div(corpus.info.bytes * rows, corpus.info.frames)
    step_us = mlp_step_us(threads, budget)
    consumed = 256 / step_us * 1.0e6

    text =
      "#{Figures.decimal(rate / 1000)} k rows/s, #{Figures.decimal(rate / consumed)} times the " <>
        "rate of the MLP's step (#{Figures.decimal(consumed / 1000)} k)"

    %{rows_per_s: rate, mlp_rows_per_s: consumed, bytes: read + written, rates: text}
  end

  # The fastest consumer, measured once per run for each thread count.
  defp mlp_step_us(threads, budget) do
    key = {__MODULE__, :mlp_step, threads}

    with nil <- Process.get(key) do
      spec = Spec.new([embedding: @packed, dropout: 0.0] ++ @mlp)
      {us, _extra} = training(spec, %{steps(256, 1, threads) | seconds: budget})
      Process.put(key, Figures.percentile(us, 50))
      Process.get(key)
    end
  end

  # Importing

  defp imports(threads) do
    made = import_case("games made for this run", threads, &Frames.make_games/1)

    case System.get_env("SCONCE_REPLAYS") do
      nil -> [made]
      dir -> [made, import_case("real games", threads, fn _scratch -> Frames.replays(dir) end)]
    end
  end

  defp import_case(text, threads, games) do
    limit = fn %{extra: extra} -> Machine.bytes(extra.bytes, threads, "files read once") end

    bench("import", text, 1, threads, limit, fn budget ->
      Frames.scratched(fn scratch ->
        paths = games.(Path.join(scratch, "games"))
        check(paths != [], "no games")
        bytes = paths |> Enum.map(&File.stat!(&1).size) |> Enum.sum()
        {us, report} = Case.time(fn -> import_once(scratch, paths, threads) end, budget, 2)
        imported!(report, paths, text)
        {us, Map.merge(import_rates(us, bytes, report), %{bytes: bytes, games: report.added})}
      end)
    end)
  end

  # Each import makes a new corpus, because a second import would find all games known.
  defp import_once(scratch, paths, threads) do
    into = Path.join(scratch, "corpus-#{System.unique_integer([:positive])}")
    corpus = Machine.value!(Corpus.import(paths, into: into, threads: threads, progress: false))
    File.rm_rf!(into)
    corpus.report
  end

  defp imported!(report, paths, text) do
    counted = report.added + length(report.skipped)
    check(counted == length(paths), "#{counted} of #{length(paths)} files accounted for")
    check(report.added > 0 and report.frames > 0, "no game was added")
    check(text == "real games" or report.skipped == [], "skipped #{inspect(report.skipped)}")
  end

  defp import_rates(us, bytes, report) do
    median = Figures.percentile(us, 50)
    rates = %{mb_per_s: bytes / median, frames_per_s: report.frames / median * 1.0e6}
    text = "#{report.added} games, #{Figures.decimal(rates.mb_per_s)} MB/s"
    Map.put(rates, :rates, "#{text}, #{Figures.decimal(rates.frames_per_s / 1000)} k frames/s")
  end

  # Shared

  defp bench(name, text, batch, threads, limit, run) do
    run = fn budget ->
      {us, extra} = run.(budget)
      %{us: us, extra: extra}
    end

    %Case{name: name, case: text, batch: batch, threads: threads, run: run, limit: limit}
  end

  defp check(true, _problem), do: :ok
  defp check(false, problem), do: raise("#{problem}")
end
