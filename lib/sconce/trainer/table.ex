defmodule Sconce.Trainer.Table do
  @moduledoc false
  # Converts the table of training options, native/train/options.exs, to schemas in the form of `Sconce.Options`.
  # native/train/src/options/table.rs describes its rows.

  alias Sconce.Options

  @path Path.expand("../../../native/train/options.exs", __DIR__)
  @external_resource @path

  # In the parsed table a native type such as `f32` or `PathBuf` is a variable or an alias.
  named = fn
    {:__aliases__, _meta, [name]} -> name
    {name, _meta, nil} when is_atom(name) -> name
    other -> other
  end

  {:options!, _meta, [groups]} = @path |> File.read!() |> Code.string_to_quoted!()
  @groups Macro.prewalk(groups, named)

  # The loss keeps a list of its own, because it has too many options to mix with the others.
  @apart :loss

  type = fn row ->
    native = row[:value] || row[:optional] || row[:list]

    one =
      cond do
        row[:type] -> row[:type]
        native in [:usize, :u64] and row[:min] == 0 -> :non_neg_integer
        native in [:usize, :u64] -> :pos_integer
        native in [:f32, :f64] -> :float
        native == :bool -> :boolean
        native == :PathBuf -> :path
      end

    if row[:optional] && !row[:type], do: {:or, [one, nil]}, else: one
  end

  # Omits `:min` for an integer type, which implies it.
  least = fn row -> if type.(row) |> inspect() =~ "integer", do: [], else: [:min] end

  rows =
    for {group, rows} <- @groups, {name, row} <- rows do
      known = least.(row) ++ [:max, :above, :below]
      own = [type: type.(row), default: row[:default]] ++ Keyword.take(row, known)
      {group, name, own ++ [doc: row[:doc]]}
    end

  needs =
    for {_group, rows} <- @groups,
        {name, row} <- rows,
        {other, values} <- row[:needs] || [],
        do: {name, {other, values}}

  free = for {_group, rows} <- @groups, {name, row} <- rows, row[:resume] == :free, do: name

  @free free
  @rows rows
  @needs needs

  @doc "Returns the names of the groups, in the order of the table."
  def groups, do: Keyword.keys(@groups)

  @doc "Returns the schema of a group."
  def group(group), do: for({^group, name, spec} <- @rows, do: {name, spec})

  @doc "Returns the schema of the options of all groups except the loss."
  def schema, do: for({group, name, spec} <- @rows, group != @apart, do: {name, spec})

  @doc "Returns the schema of the named options, in the given order."
  def schema(names), do: for(name <- names, do: {name, Keyword.fetch!(schema(), name)})

  @doc "Returns `{name, {other, values}}` for each option `name` that needs the option `other` to have one of `values`."
  def needs, do: @needs

  @doc "Returns the options that may change in a resumed run."
  def free, do: @free

  @doc """
  Returns options without groups: `data: [batch_size: 32]` becomes `batch_size: 32`.
  """
  def flat(opts) do
    Enum.flat_map(Options.keyword!(opts), fn {group, own} ->
      if group in groups() and group != @apart, do: of_group!(group, own), else: [{group, own}]
    end)
  end

  @doc "Removes the groups from options in their native form."
  def by_name(%{} = options) do
    {grouped, rest} = Map.split(options, groups() -- [@apart])
    Enum.reduce(grouped, rest, fn {_group, own}, all -> Map.merge(all, own) end)
  end

  defp of_group!(group, own) do
    Keyword.keyword?(own) ||
      raise ArgumentError,
            "option #{inspect(group)}: expected a keyword list, got: #{inspect(own)}"

    names = Keyword.keys(group(group))
    for {name, _value} <- own, do: Options.known!(name, names, "option of #{inspect(group)}")
    own
  end
end
