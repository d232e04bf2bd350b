defmodule Sconce.Bench.Zoo do
  @moduledoc false
  # One row for each network of `Sconce.Zoo`: its size, its memory and its times, beside ONNX Runtime. A second table has
  # the same networks in 8 bits.

  alias Sconce.Bench.{Case, Frames, Machine, Onnx, Output}
  alias Sconce.{Figures, Net, Zoo}

  # Turns of Sconce and of the peer.
  @turns 4
  # Loads whose median is the cold start.
  @cold 9

  @columns [
    {"network", 20, :left},
    {"kind", 6, :left},
    {"parameters", 10, :right},
    {"weights", 8, :right},
    {"arena", 8, :right},
    {"cold_us", 8, :right},
    {"median_us", 9, :right},
    {"p99_us", 8, :right},
    {"Mflop", 7, :right},
    {"limit_us", 8, :right},
    {"x limit", 7, :right},
    {"ort_us", 8, :right},
    {"ort_p99", 8, :right},
    {"ours/ort", 8, :right},
    {"ort_cold", 8, :right},
    {"apart", 7, :right}
  ]

  @columns8 [
    {"8 bits", 20, :left},
    {"vnni", 4, :left},
    {"weights", 8, :right},
    {"f32_us", 8, :right},
    {"int8_us", 8, :right},
    {"p99_us", 8, :right},
    {"int8/f32", 8, :right},
    {"apart", 7, :right},
    {"ort_f32", 8, :right},
    {"ort_int8", 8, :right},
    {"ort_p99", 8, :right},
    {"ours/ort", 8, :right},
    {"ort_apart", 9, :right}
  ]

  @doc """
  Measures the networks for `budget` seconds each, at batch 1 on one thread. Calls `say` with each line of the table. With
  `peers: true` ONNX Runtime has the same networks, inputs and time, in turns.
  """
  @spec run([Zoo.name()], keyword, (String.t() -> term)) :: [map]
  def run(names, opts, say) do
    say.(Output.line(@columns, for({title, _width, _side} <- @columns, do: title)))

    Frames.scratched(fn folder ->
      peer = if opts[:peers], do: Onnx.open(folder)
      rows = for name <- names, do: name |> measured(folder, peer, opts) |> tap(&say.(line(&1)))
      if peer, do: Onnx.close(peer)
      if text = ratios(rows), do: say.("\n" <> text)
      eight_bits(rows, say)
      rows
    end)
  end

  defp measured(name, folder, peer, opts) do
    name |> row(folder, peer, opts[:budget]) |> Map.put(:ok, true)
  rescue
    error -> failed(name, Exception.message(error))
  catch
    kind, reason -> failed(name, "#{kind} #{inspect(reason)}")
  end

  defp failed(name, reason), do: %{name: name, ok: false, failed: reason}

  defp row(name, folder, peer, budget) do
    path = Path.join(folder, "#{name}.safetensors")
    net = Machine.value!(Zoo.init(name, seed: 1))
    :ok = Net.save(net, path)
    inputs = inputs(net.spec)
    output = Machine.value!(Net.run(net, inputs))
    finite!(output)
    checked = check!(peer, name, folder, net.spec, inputs, output)
    small = Machine.value!(Net.load(path, storage: :int8))
    apart8 = apart(output, Machine.value!(Net.run(small, inputs)))
    quantised = peer && Onnx.quantise(peer, name)
    cold = for _ <- 1..@cold, do: cold(path, inputs)
    sides = [{net, :f32, peer}, {small, :int8, if(match?({:ok, _}, quantised), do: peer)}]
    [{us, theirs}, {us8, theirs8}] = turns(sides, inputs, name, budget)
    {limit_us, _reason} = Machine.flops(net.outline.flops, 1, "products")
    median = Figures.percentile(us, 50)

    %{
      name: name,
      kind: Enum.find([:vision, :audio, :sensor], &(name in Zoo.names(&1))),
      parameters: net.outline.parameters,
      flops: net.outline.flops,
      bytes: net.bytes,
      arena_bytes: net.arena_bytes,
      cold_us: Figures.percentile(cold, 50),
      median_us: median,
      p99_us: Figures.percentile(us, 99),
      n: length(us),
      limit_us: limit_us,
      of_limit: median / limit_us
    }
    |> Map.merge(checked)
    |> Map.merge(beside(theirs, median))
    |> Map.put(:int8, small(small, us8, theirs8, {apart8, quantised}))
  end

  # The same network in 8 bits.
  defp small(net, us, theirs, {apart, quantised}) do
    median = Figures.percentile(us, 50)

    %{
      bytes: net.bytes,
      median_us: median,
      p99_us: Figures.percentile(us, 99),
      apart: apart,
      vnni: vnni()
    }
    |> Map.merge(beside(theirs, median))
    |> Map.merge(
      case quantised do
        {:ok, %{"difference" => apart}} -> %{peer_apart: apart}
        {:error, reason} -> %{peer_failed: reason}
        nil -> %{}
      end
    )
  end

  # Whether the CPU multiplies bytes in one instruction, as the kernels for 8 bits do where they can.
  defp vnni do
    case File.read("/proc/cpuinfo") do
      {:ok, text} -> if text =~ "avx512_vnni", do: "yes", else: "no"
      {:error, _reason} -> "-"
    end
  end

  # The largest difference of two outputs, relative to the largest number.
  defp apart(output, other) do
    {output, other} = {floats(output), floats(other)}
    most = output |> Enum.map(&abs/1) |> Enum.max()
    off = output |> Enum.zip(other) |> Enum.map(fn {a, b} -> abs(a - b) end) |> Enum.max()
    off / max(most, 1.0e-12)
  end

  # The time from a file in the page cache to the first output.
  defp cold(path, inputs) do
    start = System.monotonic_time(:nanosecond)
    {:ok, net} = Net.load(path)
    {:ok, _output} = Net.run(net, inputs)
    (System.monotonic_time(:nanosecond) - start) / 1000
  end

  # The times of each side, and of the peer beside it, in turns.
  defp turns(sides, inputs, name, budget) do
    seconds = budget / @turns

    turns =
      for _turn <- 1..@turns do
        for {net, storage, peer} <- sides do
          {us, {:ok, _output}} = Case.time(fn -> Net.run(net, inputs) end, seconds)
          {us, if(peer, do: Onnx.time(peer, name, seconds, storage))}
        end
      end

    for side <- Enum.zip_with(turns, & &1) do
      {ours, theirs} = Enum.unzip(side)
      {Enum.concat(ours), Enum.reject(theirs, &is_nil/1)}
    end
  end

  defp beside([], _median), do: %{}

  defp beside(theirs, median) do
    peer = theirs |> Enum.map(& &1["median_us"]) |> Figures.percentile(50)
    p99 = theirs |> Enum.map(& &1["p99_us"]) |> Figures.percentile(50)
    %{peer_us: peer, peer_p99_us: p99, of_peer: median / peer}
  end

  defp check!(nil, _name, _folder, _spec, _inputs, _output), do: %{}

  defp check!(peer, name, folder, spec, inputs, output) do
    given = for data <- List.wrap(values(inputs)), do: floats(data)

    own = spec |> Net.Spec.to_native() |> Map.merge(%{given: given, output: floats(output)})

    File.write!(Path.join(folder, "#{name}.json"), Output.json(own))
    %{"difference" => apart, "cold_us" => cold_us} = Onnx.check(peer, name)
    %{apart: apart, peer_cold_us: cold_us}
  end

  defp values(inputs) when is_list(inputs), do: Keyword.values(inputs)
  defp values(data), do: data

  # Random numbers, or tokens, as binaries: in the order of the declaration.
  defp inputs(%{inputs: [%{name: "input"} = input]}), do: numbers(input)

  defp inputs(%{inputs: inputs}),
    do: for(input <- inputs, do: {String.to_existing_atom(input.name), numbers(input)})

  defp numbers(%{shape: shape, vocabulary: tokens}) do
    state = :rand.seed_s(:exsss, 7)
    many = Enum.product(shape)
    {numbers, _state} = Enum.map_reduce(1..many, state, fn _i, state -> draw(tokens, state) end)
    for number <- numbers, into: <<>>, do: <<number::float-32-little>>
  end

  defp draw(nil, state), do: :rand.normal_s(state)

  defp draw(tokens, state) do
    {number, state} = :rand.uniform_s(tokens, state)
    {number - 1.0, state}
  end

  defp floats(data), do: for(<<number::float-32-little <- data>>, do: number)

  # NaN and infinities do not match the segment of a float.
  defp finite!(data) do
    4 * length(floats(data)) == byte_size(data) || raise "a number is not finite"
  end

  defp line(%{ok: false} = row),
    do: "#{String.pad_trailing("#{row.name}", 20)}  FAILED: #{row.failed}"

  defp line(row) do
    Output.line(@columns, [
      to_string(row.name),
      to_string(row.kind),
      Figures.grouped(row.parameters),
      Figures.size(row.bytes),
      Figures.size(row.arena_bytes),
      Figures.decimal(row.cold_us),
      Figures.decimal(row.median_us),
      Figures.decimal(row.p99_us),
      Figures.decimal(row.flops / 1.0e6),
      Figures.decimal(row.limit_us),
      Figures.decimal(row.of_limit),
      decimal(row[:peer_us]),
      decimal(row[:peer_p99_us]),
      decimal(row[:of_peer]),
      decimal(row[:peer_cold_us]),
      apart(row[:apart])
    ])
  end

  defp eight_bits(rows, say) do
    say.("\n" <> Output.line(@columns8, for({title, _width, _side} <- @columns8, do: title)))
    rows = for %{ok: true} = row <- rows, do: row
    for row <- rows, do: say.(line8(row, row.int8))
    if text = ratios8(rows), do: say.("\n" <> text)

    for %{name: name, int8: %{peer_failed: reason}} <- rows,
        do: say.("ONNX Runtime has no 8 bits of #{name}: #{reason}")
  end

  defp line8(row, own) do
    Output.line(@columns8, [
      to_string(row.name),
      own.vnni,
      Figures.size(own.bytes),
      Figures.decimal(row.median_us),
      Figures.decimal(own.median_us),
      Figures.decimal(own.p99_us),
      Figures.decimal(own.median_us / row.median_us),
      apart(own.apart),
      decimal(row[:peer_us]),
      decimal(own[:peer_us]),
      decimal(own[:peer_p99_us]),
      decimal(own[:of_peer]),
      apart(own[:peer_apart])
    ])
  end

  defp ratios8([]), do: nil

  defp ratios8(rows) do
    of_f32 = for row <- rows, do: row.int8.median_us / row.median_us
    peers = for %{int8: %{of_peer: ratio}} <- rows, do: ratio

    beside =
      if peers != [],
        do: "; / ONNX Runtime in 8 bits: median #{decimal(Figures.percentile(peers, 50))}"

    "8 bits / f32, #{length(rows)} networks: median #{decimal(Figures.percentile(of_f32, 50))}#{beside}"
  end

  defp decimal(nil), do: "-"
  defp decimal(number), do: Figures.decimal(number)

  defp apart(nil), do: "-"
  defp apart(number), do: :erlang.float_to_binary(number / 1, scientific: 1)

  defp ratios(rows) do
    case for(%{of_peer: ratio} <- rows, do: ratio) do
      [] ->
        nil

      all ->
        slower = Enum.count(all, &(&1 > 1))
        mean = Enum.sum(all) / length(all)

        "ours / ONNX Runtime, #{length(all)} networks: median #{decimal(Figures.percentile(all, 50))}, " <>
          "mean #{decimal(mean)}, largest #{decimal(Enum.max(all))}; slower on #{slower}"
    end
  end
end
