defmodule Sconce.Bench.Machine do
  @moduledoc false
  # Description and limits of the machine on which the figures are measured.

  alias Sconce.{Figures, Native}
  alias Sconce.Native.Call

  @ceiling_seconds 0.2

  @doc "Model, cores and versions, for the header and for every line of JSON."
  @spec describe() :: map
  def describe do
    {:ok, info} = Sconce.native_info()

    %{
      cpu: cpu(),
      cores: cores(),
      simd: Enum.map_join(for({name, true} <- info.cpu, do: name), " ", &to_string/1),
      elixir: System.version(),
      otp: System.otp_release(),
      rustc: info.rustc,
      profile: info.profile,
      date: Date.to_iso8601(Date.utc_today()),
      load: load()
    }
  end

  @doc "Logical processors that this VM may use."
  @spec cores() :: pos_integer
  def cores do
    case :erlang.system_info(:logical_processors_available) do
      n when is_integer(n) -> n
      :unknown -> System.schedulers_online()
    end
  end

  @doc "The best possible time of reading `bytes` bytes `times` times, from the cache that holds them."
  @spec bytes(number, pos_integer, String.t(), pos_integer) :: {float, String.t()}
  def bytes(bytes, threads, what, times \\ 1) do
    # Rounds the size up by at most a quarter of an octave. Cases of about the same size then share one
    # measurement, and a case that just fits a cache is not measured with a larger set that does not fit.
    set = 4096 * ceil(:math.pow(2, ceil(4 * :math.log2(max(bytes, 1))) / 4) / 4096)
    rate = ceiling({:bandwidth, set, threads})
    often = if times > 1, do: " #{times} times", else: ""
    text = "#{what}, #{Figures.size(bytes)}#{often} at #{Figures.decimal(rate / 1.0e9)} GB/s"
    {bytes * times / rate * 1.0e6, text}
  end

  @doc "The best possible time of a number of floating-point operations."
  @spec flops(number, pos_integer, String.t()) :: {float, String.t()}
  def flops(flops, threads, what) do
    rate = ceiling({:flops, threads})

    text =
      "#{what}, #{Figures.decimal(flops / 1.0e6)} Mflop at #{Figures.decimal(rate / 1.0e9)} Gflop/s"

    {flops / rate * 1.0e6, text}
  end

  @doc "The best possible time of floating-point operations followed by exponentials."
  @spec flops(number, number, pos_integer, String.t()) :: {float, String.t()}
  def flops(flops, exponentials, threads, what) when exponentials > 0 do
    {us, text} = flops(flops, threads, what)
    {also_us, also} = exponentials(exponentials, threads, text)
    {us + also_us, also}
  end

  def flops(flops, _none, threads, what), do: flops(flops, threads, what)

  @doc "The best possible time of a number of exponentials."
  @spec exponentials(number, pos_integer, String.t()) :: {float, String.t()}
  def exponentials(exponentials, threads, what) do
    rate = ceiling({:exponentials, threads})
    millions = Figures.decimal(exponentials / 1.0e6)
    text = "#{what}, #{millions} M exponentials at #{Figures.decimal(rate / 1.0e9)} G/s"
    {exponentials / rate * 1.0e6, text}
  end

  @doc "The time of a no-op call, measured in the same run."
  @spec control(String.t()) :: {float, String.t()}
  def control(what) do
    {ceiling(:noop), "a no-op NIF call; #{what}"}
  end

  @doc "Starts native work with a reference, and returns its answer."
  @spec answer((reference -> {:ok, term} | :ok | {:error, Exception.t()})) :: term
  def answer(start), do: start |> Call.run() |> value!()

  @doc "The value of a successful answer; raises the error otherwise."
  @spec value!({:ok, value} | {:error, Exception.t()}) :: value when value: term
  def value!({:ok, value}), do: value
  def value!({:error, error}), do: raise(error)

  # Each limit is measured when a case first asks for it.
  defp ceiling(what) do
    key = {__MODULE__, what}

    with nil <- Process.get(key) do
      value = measure(what)
      Process.put(key, value)
      value
    end
  end

  defp measure({:bandwidth, bytes, threads}),
    do: answer(&Native.bench_bandwidth(&1, bytes, threads, @ceiling_seconds))

  defp measure({:flops, threads}), do: answer(&Native.bench_flops(&1, threads, @ceiling_seconds))

  defp measure({:exponentials, threads}),
    do: answer(&Native.bench_exponentials(&1, threads, @ceiling_seconds))

  defp measure(:noop) do
    {us, :ok} = Sconce.Bench.Case.time(&Native.bench_noop/0, @ceiling_seconds)
    Figures.percentile(us, 50)
  end

  defp cpu do
    with {:ok, text} <- File.read("/proc/cpuinfo"),
         [_, model] <- Regex.run(~r/^model name\s*: (.+)$/m, text) do
      model
    else
      _ -> to_string(:erlang.system_info(:system_architecture))
    end
  end

  # Average count of processes that were ready to run in the last minute, including this one.
  defp load do
    with {:ok, text} <- File.read("/proc/loadavg"), {load, _rest} <- Float.parse(text) do
      load
    else
      _ -> nil
    end
  end
end
