defmodule Sconce.Trainer.OptionsFile do
  @moduledoc false
  # Reads options of a run from a file: JSON in the form of `run.json`, or `.exs`.

  alias Sconce.{Native, Options}
  alias Sconce.Policy.Spec
  alias Sconce.Trainer.Table

  # Options that are not read from a file, because they belong to one run or one machine.
  @own [:device, :resume, :out]

  @doc "Returns the options of a file. Raises `ArgumentError` that names the fault."
  def read!(path) do
    path = path |> Options.path!() |> Path.expand()
    said = if Path.extname(path) == ".exs", do: evaluated!(path), else: decoded!(path)
    Keyword.drop(said, @own)
  end

  defp evaluated!(path) do
    {said, _binding} = Code.eval_file(path)
    if Keyword.keyword?(said), do: Table.flat(said), else: refuse!(path, "no keyword list")
  rescue
    error in [File.Error, Code.LoadError] ->
      refuse!(path, Exception.message(error))

    error in [SyntaxError, TokenMissingError, CompileError] ->
      refuse!(path, Exception.message(error))
  end

  defp decoded!(path) do
    case Native.train_said(path) do
      {:ok, %{options: options, loss: loss} = said} ->
        loss = values!(loss, Table.group(:loss))

        more =
          for {name, value} <- [corpus: said.corpus, spec: spec(said.spec), loss: loss],
              value not in [nil, []],
              do: {name, value}

        values!(options, Table.schema()) ++ more

      # The message of the error already names the file.
      {:error, error} ->
        raise ArgumentError, "option :" <> Exception.message(error)
    end
  end

  defp spec(nil), do: nil
  defp spec(native), do: Spec.from_native(native)

  defp values!(pairs, schema) do
    names = Map.new(schema, fn {name, _spec} -> {to_string(name), name} end)

    for [text, value] <- pairs do
      Options.known!(text, Map.keys(names))
      name = names[text]
      {name, value(value, schema[name][:type])}
    end
  end

  # Converts a value of the file: names are text there, and an option without a value is an empty list, "none" or
  # missing.
  defp value([], _type), do: nil
  defp value("none", _type), do: nil

  defp value(text, type) when is_binary(text),
    do: Enum.find(names(type), text, &(is_atom(&1) and to_string(&1) == text))

  defp value(value, _type), do: value

  defp names({:in, values}), do: values
  defp names({:or, types}), do: Enum.flat_map(types, &names/1)
  defp names(type), do: [type]

  defp refuse!(path, reason), do: raise(ArgumentError, "option :options: #{path}: #{reason}")
end
