defmodule Sconce.GPU.Memory do
  @moduledoc false
  # The memory of a GPU as figures, as text and as warnings.

  alias Sconce.{Error, GPU, Options}
  alias Sconce.GPU.{Card, Catalogue}

  @smaller "use a smaller batch_size"

  @doc "The used memory and its fraction."
  @spec status(GPU.index()) :: {:ok, map} | {:error, Error.t()}
  def status(index) do
    with {:ok, memory} <- Card.memory(:memory_status, index) do
      share = Float.round(memory.used_mb / max(memory.total_mb, 1), 2)
      {:ok, %{used_mb: memory.used_mb, total_mb: memory.total_mb, utilization: share}}
    end
  end

  @doc "The memory by use, and the load."
  @spec info(GPU.index()) :: {:ok, map} | {:error, Error.t()}
  def info(index) do
    with {:ok, memory} <- Card.memory(:get_memory_info, index),
         {:ok, busy} <- Card.busy(index),
         do: {:ok, Map.put(memory, :utilization, busy)}
  end

  @doc "The text of a progress line."
  @spec line(GPU.index()) :: String.t()
  def line(index) do
    case info(index) do
      {:ok, memory} -> "GPU: #{filled(memory)}#{busy_text(memory.utilization)}"
      {:error, _error} -> "GPU: N/A"
    end
  end

  @doc "A warning if the memory is nearly full."
  @spec full(keyword, GPU.index()) :: :ok | {:warning, String.t()} | {:error, Error.t()}
  def full(opts, index) do
    threshold = Options.validate!(opts, Catalogue.schema(:warn))[:threshold]

    with {:ok, memory} <- Card.memory(:check_memory_warning, index) do
      if memory.used_mb < threshold * memory.total_mb,
        do: :ok,
        else: {:warning, "GPU #{index} is nearly full, #{filled(memory)}: #{@smaller}"}
    end
  end

  @doc "A warning if less memory than needed is free."
  @spec short(keyword, GPU.index()) :: :ok | {:warning, String.t()} | {:error, Error.t()}
  def short(opts, index) do
    required = Options.validate!(opts, Catalogue.schema(:free))[:required_mb]

    with {:ok, %{free_mb: free}} <- Card.memory(:check_free_memory, index) do
      figures = "#{text(free)} free on GPU #{index}, #{text(required)} needed"

      if free >= required,
        do: :ok,
        else:
          {:warning, "#{figures}: #{@smaller}, or end other processes (Sconce.GPU.processes/1)"}
    end
  end

  @doc "A size in MiB as text."
  @spec text(non_neg_integer) :: String.t()
  def text(mb) when mb in 0..1023, do: "#{mb} MB"
  def text(mb) when mb in 1024..0xFFFF_FFFF_FFFF, do: "#{decimals(mb / 1024, 2)} GB"
  def text(other), do: Options.argument!("mb", other, "a number of MiB")

  defp filled(%{used_mb: used, total_mb: total}) do
    percent = round(100 * used / max(total, 1))
    "#{decimals(used / 1024, 1)}/#{decimals(total / 1024, 1)} GB (#{percent}%)"
  end

  defp busy_text(nil), do: ""
  defp busy_text(percent), do: " | Util: #{percent}%"

  defp decimals(number, digits), do: :erlang.float_to_binary(number, decimals: digits)
end
