defmodule Sconce.Net.Formats do
  @moduledoc false
  # The fastest of the formats in which a net can store its weights. Nets are made by a function of a format.

  alias Sconce.{Error, Native, Options, Tuner}
  alias Sconce.Net.Spec

  # A measurement is the best of several runs, of at least this time together.
  @least_us 2000
  @least_runs 5

  @type made :: {reference, map}

  @doc "Returns a net in a format, or of `{:auto, formats}` the one with the fastest run, and its format."
  @spec made(
          atom | {:auto, [atom]},
          Spec.t() | nil,
          boolean | nil,
          (atom -> {:ok, made} | {:error, Error.t()})
        ) ::
          {:ok, made, atom} | {:error, Error.t()}
  def made({:auto, []}, _spec, _tuner, _make),
    do: Options.argument!("option :storage", {:auto, []}, "at least one format")

  def made({:auto, formats}, spec, tuner, make) do
    formats = Enum.uniq(formats)

    with {:ok, first} <- make.(hd(formats)) do
      if match?([_], formats) or not Tuner.on?(tuner),
        do: {:ok, first, hd(formats)},
        else: fastest(formats, spec || Spec.from_native(elem(first, 1).spec), first, make)
    end
  end

  def made(format, _spec, _tuner, make),
    do: with({:ok, made} <- make.(format), do: {:ok, made, format})

  defp fastest([known | _] = formats, spec, first, make) do
    inputs = for %{shape: shape} <- spec.inputs, do: zeros(Enum.product(shape))
    # Nets that were made already, so that the chosen one is not made again.
    nets = :ets.new(:nets, [:private])
    :ets.insert(nets, {known, first})

    measure = fn format ->
      with {:ok, {ref, _info}} <- kept(nets, format, make), do: timed(ref, inputs)
    end

    candidates = for format <- formats, do: {format, format}
    key = {:net_storage, Spec.to_native(spec)}

    try do
      with {:ok, choice} <-
             Tuner.choose(key, candidates, measure, about: Spec.summary(spec), tuner: true),
           {:ok, made} <- kept(nets, choice.chosen, make),
           do: {:ok, made, choice.chosen}
    after
      :ets.delete(nets)
    end
  end

  defp kept(nets, format, make) do
    case :ets.lookup(nets, format) do
      [{^format, made}] ->
        {:ok, made}

      [] ->
        with {:ok, made} <- make.(format) do
          :ets.insert(nets, {format, made})
          {:ok, made}
        end
    end
  end

  # Zeros are tokens too.
  defp zeros(count), do: :binary.copy(<<0.0::float-32-little>>, count)

  defp timed(ref, inputs), do: timed(ref, inputs, System.monotonic_time(), 0, :infinity)

  defp timed(ref, inputs, begin, runs, least) do
    start = System.monotonic_time()

    with {:ok, _output} <- Native.net_run_dirty(ref, inputs) do
      now = System.monotonic_time()
      least = min(least, microseconds(now - start))

      if runs + 1 >= @least_runs and microseconds(now - begin) >= @least_us,
        do: {:ok, least},
        else: timed(ref, inputs, begin, runs + 1, least)
    end
  end

  defp microseconds(time), do: System.convert_time_unit(time, :native, :nanosecond) / 1000
end
