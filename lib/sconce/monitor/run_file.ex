defmodule Sconce.Monitor.RunFile do
  @moduledoc false
  # The file by which others watch a run: numbers of its events as gauges, learning curves, and its end.

  require Logger

  alias Sconce.Monitor.{Files, Folder, Region}

  @slots 128
  # Curves: measurements whose development says how a run goes.
  @curves ~w(loss avg_loss val_loss nll accuracy mean_return mean_length frames_per_second steps_per_second grad_norm
             learning_rate entropy approx_kl clip_fraction value_loss teacher_kl)a

  @enforce_keys [:region, :id]
  defstruct [:region, :id]

  @type t :: %__MODULE__{region: Region.t(), id: String.t()}

  @doc "Creates the file of a run with this folder; nil if there can be none."
  @spec open(String.t(), Path.t()) :: t | nil
  def open(kind, out) do
    id = Base.encode16(<<:rand.uniform(0x1_0000_0000) - 1::32>>, case: :lower)
    meta = Map.merge(Files.place(), %{kind: kind, id: id, out: Path.expand(out)})

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
    at = event[:step] || event[:steps]

    values =
      Enum.flat_map(numbers, fn {key, value} -> values("#{name}.#{key}", key, value, at) end)

    %{file | region: Region.write(region, note(event) ++ values)}
  end

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
  @told [:began, :precision, :resumed, :out_of_memory, :validation, :checkpoint, :save_failed] ++
          [:callback_late, :saved, :failed]

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

  @doc "Says that the run lives, and returns whether someone has asked it to stop."
  @spec beat(t | nil) :: :go_on | :stop
  def beat(nil), do: :go_on

  def beat(%__MODULE__{region: region}) do
    _ = Region.beat(region)
    if File.rm(Folder.stop(region.path)) == :ok, do: :stop, else: :go_on
  end

  @doc "Says that the process of the run ended before the run was over."
  @spec stopped(t | nil) :: :ok
  def stopped(nil), do: :ok

  def stopped(%__MODULE__{region: region}) do
    _ = Region.beat(region, :stopped)
    :ok
  end
end
