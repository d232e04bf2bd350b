defmodule Sconce.Monitor.RunFile do
  @moduledoc false
  # The file by which others watch a run: numbers of its events as gauges, learning curves, and its end.

  require Logger

  alias Sconce.Monitor.{Files, Folder, Region, Vm}
  alias Sconce.Pressure

  @slots 128
  # Curves: measurements whose development says how a run goes.
  @curves ~w(loss avg_loss val_loss nll accuracy mean_return mean_length frames_per_second steps_per_second grad_norm
             learning_rate entropy approx_kl clip_fraction value_loss teacher_kl best_return coverage qd_score
             evaluations_per_second)a

  # Curves of the machine and its cards over the steps of the run.
  @machine ~w(sconce_cpu_ratio sconce_memory_resident_bytes sconce_device_utilisation_ratio
              sconce_device_memory_used_bytes sconce_device_temperature_celsius sconce_device_throttled)

  @enforce_keys [:region, :id]
  defstruct [:region, :id, at: 0]

  @typedoc "`at` is the last step."
  @type t :: %__MODULE__{region: Region.t(), id: String.t(), at: number}

  @doc "Creates the file of a run with this folder; nil if there can be none."
  @spec open(String.t(), Path.t()) :: t | nil
  def open(kind, out) do
    id = Folder.id()
    vm = Vm.file()
    meta = Map.merge(Files.place(), %{kind: kind, id: id, out: Path.expand(out)})
    meta = if vm, do: Map.put(meta, :vm, Path.basename(vm)), else: meta

    with {:ok, path} <- Files.new("#{id}.run"),
         {:ok, region} <- Region.open(path, meta, @slots) do
      %__MODULE__{region: region, id: id}
    else
      {:error, %{kind: :unavailable}} ->
        nil

      {:error, error} ->
        Logger.info("the run has no file for mix sconce.monitor: #{Exception.message(error)}")
        nil
    end
  end

  @doc "Writes an event. The file of others sees it at the next `beat/1`, and the last one at once."
  @spec event(t | nil, map) :: t | nil
  def event(nil, _event), do: nil

  def event(%__MODULE__{region: region} = file, %{event: :done, result: result}) do
    region = Region.write(region, ended(result))
    _ = Region.beat(region, phase(result))
    %{file | region: region}
  end

  def event(%__MODULE__{region: region} = file, %{event: name} = event) do
    numbers = event |> Map.drop([:event, :figures]) |> Map.merge(event[:figures] || %{})
    at = number(event[:step]) || number(event[:steps])

    values =
      Enum.flat_map(numbers, fn {key, value} -> values("#{name}.#{key}", key, value, at) end)

    %{
      file
      | region: Region.write(region, note(event) ++ values),
        at: number(event[:step]) || file.at
    }
  end

  defp number(value), do: if(is_number(value), do: value)

  defp values(name, key, value, at) when is_number(value) do
    gauge = {:gauge, name, "", "", value}

    if curve?(key) and is_number(at),
      do: [gauge, {:series, name <> ".curve", "", "", {at, value}}],
      else: [gauge]
  end

  defp values(_name, _key, _other, _at), do: []

  defp curve?(key) when key in @curves, do: true
  defp curve?(key) when is_binary(key), do: Enum.any?(@curves, &(to_string(&1) == key))
  defp curve?(_key), do: false

  # Events with a note. The others are frequent.
  @told [:began, :precision, :resumed, :out_of_memory, :grown, :validation, :checkpoint] ++
          [:save_failed, :callback_late, :saved, :failed]

  defp note(%{event: :pressure, by: :elixir} = event),
    do: [{:text, "note", "", "", Pressure.text(event)}]

  defp note(%{event: name} = event) when name in @told do
    fields =
      for {key, value} <- event, key != :event, is_number(value) or is_binary(value) do
        "#{key} #{if is_float(value), do: Float.round(value, 4), else: value}"
      end

    [{:text, "note", "", "", Enum.join(["#{name}" | Enum.sort(fields)], ", ")}]
  end

  defp note(_event), do: []

  defp ended({:ok, report}),
    do: [{:text, "note", "", "", "ended: #{report[:stopped] || "done"}"}]

  defp ended({:error, error}), do: [{:text, "error", "", "", Exception.message(error)}]

  defp phase({:ok, %{stopped: :stopped}}), do: :stopped
  defp phase({:ok, _report}), do: :done
  defp phase({:error, _error}), do: :failed

  @doc "Says that the run lives and how its machine is, and returns whether someone has asked it to stop."
  @spec beat(t | nil) :: {:go_on | :stop, t | nil}
  def beat(nil), do: {:go_on, nil}

  def beat(%__MODULE__{region: region} = file) do
    region = Region.write(region, Enum.flat_map(Vm.machine(), &machine(&1, file.at)))
    _ = Region.beat(region)
    asked = if File.rm(Folder.stop(region.path)) == :ok, do: :stop, else: :go_on
    {asked, %{file | region: region}}
  end

  # `sconce_device_power_watts{device="cuda:0"}` becomes `cuda:0.power_watts`, and a figure of the process `machine.cpu_ratio`.
  defp machine({:gauge, name, unit, help, value}, at) when is_number(value) do
    {base, owner} =
      case String.split(name, ["{device=\"", "\"}"]) do
        [base, device, ""] -> {base, device}
        [base] -> {base, "machine"}
      end

    if base in @machine do
      name = owner <> "." <> String.replace(base, ~r/^sconce_(device_)?/, "")
      [{:gauge, name, unit, help, value}, {:series, name <> ".curve", unit, help, {at, value}}]
    else
      []
    end
  end

  defp machine(_other, _at), do: []

  @doc "Says that the process of the run ended before the run was over."
  @spec stopped(t | nil) :: :ok
  def stopped(nil), do: :ok

  def stopped(%__MODULE__{region: region}) do
    _ = Region.beat(region, :stopped)
    :ok
  end
end
