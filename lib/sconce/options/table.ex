defmodule Sconce.Options.Table do
  @moduledoc false
  # Converts a table of options that Rust and Elixir share to schemas in the form of `Sconce.Options`.
  # native/train/src/options/table.rs describes its rows.
  #
  #     use Sconce.Options.Table, path: "native/train/options.exs", apart: :loss
  #
  # defines the functions below for the table at this path. The options of the group `apart` keep a list of their own.

  alias Sconce.Options

  @root Path.expand("../../..", __DIR__)

  defmacro __using__(opts) do
    quote bind_quoted: [opts: opts, root: @root] do
      path = Path.join(root, opts[:path])
      @external_resource path
      {groups, rows, needs, free} = Sconce.Options.Table.read!(path)
      @groups groups
      @rows rows
      @needs needs
      @free free
      @apart opts[:apart]

      @doc "Returns the names of the groups, in the order of the table."
      def groups, do: @groups

      @doc "Returns the schema of a group."
      def group(group), do: for({^group, name, spec} <- @rows, do: {name, spec})

      @doc "Returns the schema of the options of all groups except the one apart."
      def schema, do: for({group, name, spec} <- @rows, group != @apart, do: {name, spec})

      @doc "Returns the schema of the named options, in the given order."
      def schema(names), do: for(name <- names, do: {name, Keyword.fetch!(schema(), name)})

      @doc "Returns `{name, {other, values}}` for each option `name` that needs the option `other` to have one of `values`."
      def needs, do: @needs

      @doc "Returns the options that may change in a resumed run."
      def free, do: @free

      @doc "Returns options without groups: `data: [batch_size: 32]` becomes `batch_size: 32`."
      def flat(opts), do: Sconce.Options.Table.flat(opts, &group/1, groups() -- [@apart])

      @doc "Removes the groups from options in their native form."
      def by_name(%{} = options) do
        {grouped, rest} = Map.split(options, groups() -- [@apart])
        Enum.reduce(grouped, rest, fn {_group, own}, all -> Map.merge(all, own) end)
      end
    end
  end

  @doc "Reads a table: its groups, rows `{group, name, schema}`, needs and free options."
  def read!(path) do
    {:options!, _meta, [groups]} = path |> File.read!() |> Code.string_to_quoted!()
    groups = Macro.prewalk(groups, &named/1)

    rows =
      for {group, rows} <- groups, {name, row} <- rows do
        known = least(row) ++ [:max, :above, :below]
        own = [type: type(row), default: row[:default]] ++ Keyword.take(row, known)
        {group, name, own ++ [doc: row[:doc]]}
      end

    needs =
      for {_group, rows} <- groups,
          {name, row} <- rows,
          {other, values} <- row[:needs] || [],
          do: {name, {other, values}}

    free = for {_group, rows} <- groups, {name, row} <- rows, row[:resume] == :free, do: name
    {Keyword.keys(groups), rows, needs, free}
  end

  # In the parsed table a native type such as `f32` or `PathBuf` is a variable or an alias.
  defp named({:__aliases__, _meta, [name]}), do: name
  defp named({name, _meta, nil}) when is_atom(name), do: name
  defp named(other), do: other

  defp type(row) do
    native = row[:value] || row[:optional] || row[:list]

    one =
      cond do
        row[:type] -> row[:type]
        native in [:usize, :u32, :u64] and row[:min] == 0 -> :non_neg_integer
        native in [:usize, :u32, :u64] -> :pos_integer
        native in [:f32, :f64] -> :float
        native == :bool -> :boolean
        native == :PathBuf -> :path
      end

    if row[:optional] && !row[:type], do: {:or, [one, nil]}, else: one
  end

  # Omits `:min` for an integer type, which implies it.
  defp least(row), do: if(row |> type() |> inspect() =~ "integer", do: [], else: [:min])

  @doc "Returns options without the groups `flat`, whose schemas `group` returns."
  def flat(opts, group, flat) do
    Enum.flat_map(Options.keyword!(opts), fn {name, own} ->
      if name in flat, do: of_group!(name, own, group), else: [{name, own}]
    end)
  end

  defp of_group!(name, own, group) do
    Keyword.keyword?(own) ||
      raise ArgumentError,
            "option #{inspect(name)}: expected a keyword list, got: #{inspect(own)}"

    names = Keyword.keys(group.(name))
    for {option, _value} <- own, do: Options.known!(option, names, "option of #{inspect(name)}")
    own
  end
end
