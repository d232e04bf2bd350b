defmodule Sconce.GPU.Card do
  @moduledoc false
  # The answers of the driver about one GPU, with sizes in MiB.

  alias Sconce.{Error, GPU, Native}
  alias Sconce.GPU.Driver

  defguardp is_index(index) when index in 0..0xFFFF

  @throttles %{
    "power_cap" => :power_cap,
    "heat" => :heat,
    "hardware" => :hardware,
    "power_brake" => :power_brake,
    "sync_boost" => :sync_boost,
    "setting" => :setting
  }

  @unknown Map.new(
             [:name, :memory_mb, :uuid, :pci_bus_id, :compute_capability, :mig],
             &{&1, nil}
           )

  @doc "Asks the driver about a GPU. `op` is the name in errors."
  @spec ask(atom, GPU.index(), (reference, {Path.t() | nil, GPU.index()} -> term)) ::
          {:ok, term} | {:error, Error.t()}
  def ask(op, index, question) when is_index(index),
    do: Driver.ask(op, &question.(&1, {&2, index}))

  def ask(_op, other, _question),
    do: raise(ArgumentError, "expected the number of a GPU, 0 or more, got: #{inspect(other)}")

  @doc "The memory of a GPU by use."
  @spec memory(atom, GPU.index()) :: {:ok, map} | {:error, Error.t()}
  def memory(op, index) do
    with {:ok, bytes} <- ask(op, index, &Native.gpu_memory/2) do
      {:ok,
       %{
         used_mb: mb(bytes.used),
         free_mb: mb(bytes.free),
         total_mb: mb(bytes.total),
         reserved_mb: mb(bytes.reserved)
       }}
    end
  end

  @doc "The load of a GPU in percent, or nil if it does not report it."
  @spec busy(GPU.index()) :: {:ok, 0..100 | nil} | {:error, Error.t()}
  def busy(index) do
    case ask(:get_memory_info, index, &Native.gpu_utilization/2) do
      {:ok, %{gpu: percent}} -> {:ok, percent}
      {:error, %Error{details: %{cause: :not_supported}}} -> {:ok, nil}
      {:error, error} -> {:error, error}
    end
  end

  @doc "The properties of a GPU."
  @spec card(atom, GPU.index()) :: {:ok, GPU.device()} | {:error, Error.t()}
  def card(op, index) do
    with {:ok, card} <- ask(op, index, &Native.gpu_card/2) do
      {bytes, card} = Map.pop!(card, :memory_bytes)
      capability = if of = card.compute_capability, do: List.to_tuple(of)
      known = %{memory_mb: mb(bytes), compute_capability: capability, error: nil}
      {:ok, Map.merge(card, known)}
    end
  end

  @doc "The properties of a GPU, or its error."
  @spec listed(GPU.index()) :: GPU.device()
  def listed(index) do
    case card(:list_devices, index) do
      {:ok, device} -> device
      {:error, error} -> Map.merge(@unknown, %{index: index, error: error})
    end
  end

  @doc "Why a GPU runs below its clocks."
  @spec throttling(GPU.index()) :: {:ok, [atom]} | {:error, Error.t()}
  def throttling(index) do
    with {:ok, reasons} <- ask(:throttling, index, &Native.gpu_throttle/2),
         do: {:ok, Enum.map(reasons, &Map.fetch!(@throttles, &1))}
  end

  @doc "The processes that use a GPU."
  @spec processes(GPU.index()) :: {:ok, [map]} | {:error, Error.t()}
  def processes(index) do
    with {:ok, found} <- ask(:processes, index, &Native.gpu_processes/2),
         do: {:ok, Enum.map(found, &process/1)}
  end

  defp process(found) do
    types = for type <- [:compute, :graphics], found[type], do: type
    bytes = found.memory_bytes

    found
    |> Map.take([:pid, :name, :mig_instance])
    |> Map.merge(%{types: types, memory_mb: bytes && mb(bytes)})
  end

  defp mb(bytes), do: div(bytes, 1_048_576)
end
