defmodule Sconce.Trainer.Meant do
  @moduledoc false
  # Options of a training that mean nothing unless another one is of some value.

  alias Sconce.Trainer.Table

  @doc "Raises `ArgumentError` for an option with another value than its own that means nothing here."
  def check!(settings, schema) do
    for {name, {other, values}} <- Table.needs(),
        settings[name] != schema[name][:default],
        not meant?(settings[other], values) do
      raise ArgumentError,
            "option #{inspect(name)} means nothing " <> why(other, values, settings)
    end
  end

  defp why(other, :given, _settings), do: "without option #{inspect(other)}"

  defp why(other, values, settings),
    do: "beside #{other}: #{inspect(settings[other])}; it goes with #{other}: #{listed(values)}"

  defp meant?(value, :above_zero), do: value > 0
  defp meant?(value, :given), do: value != nil
  defp meant?(value, values), do: value in values

  defp listed(:above_zero), do: "a number above 0"
  defp listed(values), do: Enum.map_join(values, " or ", &inspect/1)
end
