defmodule Sconce.Events.Table do
  @moduledoc false
  # A catalogue of events: a keyword list by name, each with `doc`, `measurements`, perhaps `metadata`, and perhaps
  # `telemetry`, a name of its own.

  @type catalogue :: keyword(keyword)

  @doc "The events as maps. Names of `:telemetry` begin with `prefix`."
  @spec all(catalogue, [atom]) :: [map]
  def all(catalogue, prefix) do
    for {name, event} <- catalogue do
      %{
        name: name,
        telemetry: telemetry(catalogue, prefix, name),
        doc: event[:doc],
        measurements: event[:measurements],
        metadata: event[:metadata] || []
      }
    end
  end

  @doc "The name of an event for `:telemetry`."
  @spec telemetry(catalogue, [atom], atom) :: [atom]
  def telemetry(catalogue, prefix, name), do: catalogue[name][:telemetry] || prefix ++ [name]

  @doc "The rows of a table in Markdown: event, when, measurements, metadata."
  @spec rows(catalogue) :: String.t()
  def rows(catalogue) do
    Enum.map_join(catalogue, fn {name, event} ->
      cells = [event[:doc], fields(event[:measurements]), fields(event[:metadata] || [])]
      "| `:#{name}` | #{Enum.join(cells, " | ")} |\n"
    end)
  end

  defp fields(fields), do: Enum.map_join(fields, "; ", fn {key, doc} -> "`#{key}` #{doc}" end)

  @doc "Splits an event into measurements and metadata."
  @spec split(catalogue, map) :: {measurements :: map, metadata :: map}
  def split(catalogue, %{event: name} = event) do
    measured = Keyword.keys(catalogue[name][:measurements])
    event |> Map.delete(:event) |> Map.split(measured)
  end

  @doc "Emits an event to `:telemetry`, if this VM has it, with `more` added to the metadata."
  @spec execute(catalogue, [atom], map, map) :: :ok
  def execute(catalogue, prefix, %{event: name} = event, more) do
    {measurements, metadata} = split(catalogue, event)
    event = [telemetry(catalogue, prefix, name), measurements, Map.merge(metadata, more)]

    # No check whether `:telemetry` runs: the application controller does not answer while the VM stops.
    if function_exported?(:telemetry, :execute, 3),
      # `apply/3` avoids a compiler warning in a host without `:telemetry`.
      do: apply(:telemetry, :execute, event),
      else: :ok
  end
end
