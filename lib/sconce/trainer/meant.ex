defmodule Sconce.Trainer.Meant do
  @moduledoc false
  # Refuses options that have an effect only with certain values of another option.

  alias Sconce.Trainer.Table

  @doc """
  Raises `ArgumentError` for an option of the schema that differs from its default and has no effect, because of the
  value of another option of the schema.
  """
  def check!(settings, schema) do
    for {name, {other, values}} <- Table.needs(),
        Keyword.has_key?(schema, name) and Keyword.has_key?(schema, other),
        settings[name] != schema[name][:default],
        not meant?(settings[other], values) do
      raise ArgumentError,
            "option #{inspect(name)} has no effect " <> why(other, values, settings)
    end
  end

  defp why(other, :given, _settings), do: "without option #{inspect(other)}"

  defp why(other, values, settings),
    do: "with #{other}: #{inspect(settings[other])}; it requires #{other}: #{listed(values)}"

  defp meant?(value, :above_zero), do: value > 0
  defp meant?(value, :given), do: value != nil
  defp meant?(value, values), do: value in values

  defp listed(:above_zero), do: "a number above 0"
  defp listed(values), do: Enum.map_join(values, " or ", &inspect/1)
end
