defmodule Sconce.Bench.Examples do
  @moduledoc false
  # Generated examples for three networks of `Sconce.Zoo`, as binaries. A seed gives the same ones on each machine.

  @typedoc "Inputs of 32-bit floats, and classes of 32-bit integers or flags of anomalies."
  @type t :: {binary, [non_neg_integer]}

  # Samples a second of a sound, of which there is one second.
  @rate 8000
  @samples 8000
  # A band each, 40 of them, in 49 windows of 200 samples.
  @bands for i <- 0..39, do: 120 * :math.pow(3600 / 120, i / 39)
  @window for i <- 0..199, do: 0.5 - 0.5 * :math.cos(2 * :math.pi() * i / 200)
  @factors for band <- @bands, do: 2 * :math.cos(2 * :math.pi() * band / @rate)
  # A word is two different sounds.
  @sounds [:low, :high, :rise, :fall]
  @words for a <- @sounds, b <- @sounds, a != b, do: {a, b}

  @doc "Spectrograms `[40, 49]` of 12 words, each of two tones or chirps in noise, and their words."
  @spec keywords(pos_integer, integer) :: t
  def keywords(count, seed), do: each(count, seed, &keyword/1)

  defp keyword(i) do
    word = rem(i, length(@words))
    {first, second} = Enum.at(@words, word)
    pitch = uniform(0.85, 1.18)
    start = uniform(0.05, 0.2)
    length = uniform(0.28, 0.36)
    parts = [{first, start, length}, {second, start + length + uniform(0.0, 0.05), length}]
    loud = uniform(0.3, 1.0)
    noise = uniform(0.02, 0.2)
    sounds = for {sound, at, length} <- parts, do: tone(sound, pitch, at, length)

    signal =
      for n <- 0..(@samples - 1) do
        t = n / @rate
        noise * :rand.normal() + loud * Enum.reduce(sounds, 0.0, &(&1.(t) + &2))
      end

    {spectrogram(signal), word}
  end

  # The frequency moves from one to the other.
  defp tone(sound, pitch, at, length) do
    {from, to} =
      Map.fetch!(
        %{low: {400, 400}, high: {1800, 1800}, rise: {500, 1500}, fall: {1500, 500}},
        sound
      )

    phase = uniform(0.0, 6.28)

    fn t ->
      u = (t - at) / length

      if u > 0 and u < 1 do
        turns = pitch * length * (from * u + (to - from) * u * u / 2)
        :math.sin(:math.pi() * u) * :math.sin(phase + 2 * :math.pi() * turns)
      else
        0.0
      end
    end
  end

  # The logarithm of the power of each band, by Goertzel's recurrence.
  defp spectrogram(signal) do
    frames =
      for frame <- Enum.chunk_every(signal, 200, 159, :discard) |> Enum.take(49),
          do: Enum.zip_with(frame, @window, &(&1 * &2))

    for factor <- @factors,
        frame <- frames,
        do: (:math.log10(power(frame, factor, 0.0, 0.0) + 1.0e-3) - 0.5) / 1.5
  end

  defp power([], factor, a, b), do: a * a + b * b - factor * a * b
  defp power([x | rest], factor, a, b), do: power(rest, factor, x + factor * a - b, a)

  @doc """
  Windows `[5, 32]` of the vibration of a machine at five places, and 1 for each that is an anomaly, a `share` of them.

  A sound machine has three harmonics of its speed with fixed gains. An anomaly has ringing impulses of a bearing, a
  second frequency, or a sensor that is loose.
  """
  @spec vibrations(pos_integer, integer, float) :: t
  def vibrations(count, seed, share), do: each(count, seed, &vibration(&1, share, count))

  defp vibration(i, share, count) do
    fault = if i < share * count, do: Enum.at([:bearing, :second, :loose], rem(i, 3))
    speed = uniform(0.045, 0.055)
    phase = uniform(0.0, 1.0)
    loud = uniform(0.8, 1.2)
    {at, place} = {uniform(2.0, 28.0), :rand.uniform(5) - 1}

    rows =
      for c <- 0..4, t <- 0..31 do
        wave =
          for {k, gain} <- [{1, 1.0}, {2, 0.5 - 0.08 * c}, {3, 0.12 * c}], reduce: 0.0 do
            sum -> sum + gain * :math.sin(2 * :math.pi() * k * (speed * t + phase + 0.11 * c))
          end

        loud * wave + 0.05 * :rand.normal() + extra(fault, c, t, at, place)
      end

    {rows, if(fault, do: 1, else: 0)}
  end

  defp extra(nil, _c, _t, _at, _place), do: 0.0

  defp extra(:bearing, c, t, at, _place) when t >= at,
    do: (0.5 + 0.1 * c) * :math.exp((at - t) / 4) * :math.sin(2.2 * (t - at))

  defp extra(:bearing, _c, _t, _at, _place), do: 0.0
  defp extra(:second, _c, t, at, _place), do: 0.3 * :math.sin(1.4 * (t + at))
  defp extra(:loose, place, _t, _at, place), do: 0.5 * :rand.normal()
  defp extra(:loose, _c, _t, _at, _place), do: 0.0

  # Digits of 5x7 pixels, a number for each row.
  @font [
    [14, 17, 19, 21, 25, 17, 14],
    [4, 12, 4, 4, 4, 4, 14],
    [14, 17, 1, 2, 4, 8, 31],
    [31, 2, 4, 2, 1, 17, 14],
    [2, 6, 10, 18, 31, 2, 2],
    [31, 16, 30, 1, 1, 17, 14],
    [6, 8, 16, 30, 17, 17, 14],
    [31, 1, 2, 4, 8, 8, 8],
    [14, 17, 17, 14, 17, 17, 14],
    [14, 17, 17, 15, 1, 2, 12]
  ]

  @doc "Images `[1, 48, 48]` of digits of a font of 5x7 pixels, turned, scaled and moved, in noise."
  @spec digits(pos_integer, integer) :: t
  def digits(count, seed), do: each(count, seed, &digit/1)

  defp digit(i) do
    class = rem(i, 10)
    rows = @font |> Enum.at(class) |> List.to_tuple()
    {size, angle} = {uniform(3.5, 5.5), uniform(-0.25, 0.25)}
    {dx, dy} = {uniform(-6.0, 6.0), uniform(-4.0, 4.0)}
    {cos, sin} = {:math.cos(angle) / size, :math.sin(angle) / size}
    ink = uniform(0.6, 1.0)

    pixels =
      for y <- 0..47, x <- 0..47 do
        {u, v} = {x - 23.5 - dx, y - 23.5 - dy}
        {column, row} = {floor(2.5 + u * cos + v * sin), floor(3.5 - u * sin + v * cos)}

        inked? =
          column in 0..4 and row in 0..6 and
            Bitwise.band(elem(rows, row), Bitwise.bsl(1, 4 - column)) != 0

        if(inked?, do: ink, else: 0.0) + 0.1 * :rand.normal()
      end

    {pixels, class}
  end

  @doc "The area under the ROC curve: the share of pairs of an anomaly and a sound window with the larger error of the anomaly."
  @spec auc([number], [0 | 1]) :: float
  def auc(errors, flags) do
    ranked = errors |> Enum.zip(flags) |> Enum.sort() |> Enum.with_index(1)
    ranks = for {{_error, 1}, rank} <- ranked, do: rank
    {anomalies, count} = {length(ranks), length(flags)}
    (Enum.sum(ranks) - anomalies * (anomalies + 1) / 2) / (anomalies * (count - anomalies))
  end

  @doc "Classes as a binary of 32-bit integers."
  def classes(classes), do: for(class <- classes, into: <<>>, do: <<class::32-little>>)

  # Each example has a generator of its own.
  defp each(count, seed, example) do
    {inputs, targets} =
      0..(count - 1)
      |> Task.async_stream(
        fn i ->
          :rand.seed(:exsss, {seed, i, 17})
          {numbers, target} = example.(i)
          {for(number <- numbers, into: <<>>, do: <<number::float-32-little>>), target}
        end,
        timeout: :infinity
      )
      |> Enum.map(fn {:ok, one} -> one end)
      |> Enum.unzip()

    {IO.iodata_to_binary(inputs), targets}
  end

  defp uniform(from, to), do: from + (to - from) * :rand.uniform()
end
