defmodule Sconce.Config.Template do
  @moduledoc false
  # `config/runtime.exs`: every setting of `Sconce.Config` as a comment, for an app to copy.

  alias Sconce.Config

  @width 98

  @doc "The text of the file. `mix run --no-start -e 'File.write!(\"config/runtime.exs\", Sconce.Config.Template.text())'` writes it."
  @spec text() :: String.t()
  def text do
    """
    import Config

    # Every setting of Sconce with its default. An app copies the lines that it changes into its own
    # config/runtime.exs. A variable of the environment counts over a line here, and an option of a
    # call over both. `mix sconce.doctor` prints the values in force and their sources.
    #
    # This file is made from the table of Sconce.Config, and a test compares them.

    # config :sconce,
    #{Config.table() |> Enum.map(&setting/1) |> join()}
    """
  end

  defp join(settings) do
    {last, others} = List.pop_at(settings, -1)
    Enum.map_join(others ++ [String.replace_suffix(last, ",", "")], "\n#\n", & &1)
  end

  defp setting({name, spec}) do
    text = String.replace(spec[:doc], "`", "") <> variables(spec[:variables])
    lines = for line <- wrap(text), do: "#   # #{line}"
    Enum.join(lines ++ ["#   #{name}: #{inspect(spec[:default])},"], "\n")
  end

  defp variables([]), do: ""

  defp variables(variables),
    do: " Variables: #{Enum.map_join(variables, ", ", &to_string(elem(&1, 0)))}."

  defp wrap(text) do
    text
    |> String.split()
    |> Enum.chunk_while(
      "",
      fn word, line ->
        longer = String.trim_leading("#{line} #{word}")
        if String.length(longer) > @width - 6, do: {:cont, line, word}, else: {:cont, longer}
      end,
      &{:cont, &1, nil}
    )
  end
end
