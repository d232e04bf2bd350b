defmodule Sconce.Switches do
  @moduledoc false
  # Converts between a schema of options and switches of a command line: `batch_size` is `--batch-size`.

  alias Sconce.{Error, Options, Text}

  # Width of a line in a task's documentation, and the indent of the further lines of a list item.
  @columns 80
  @indent "    "

  @doc "Returns the schema as a list of switches for a task's documentation, wrapped to #{@columns} columns."
  def docs(schema) do
    Enum.map_join(schema, "\n", fn {name, spec} ->
      default = if spec[:default] in [nil, []], do: "", else: " (#{text(spec[:default])})"
      doc = spec[:doc] |> String.replace("`nil`", "`none`") |> speak(schema)
      wrapped("  * `#{switch(name)}` - #{doc}#{choices(spec[:type])}#{default}")
    end)
  end

  defp wrapped(item) do
    [first | words] = item |> String.trim_leading() |> String.split()

    {lines, last} =
      Enum.reduce(words, {[], "  " <> first}, fn word, {lines, line} ->
        if String.length(line) + 1 + String.length(word) <= @columns,
          do: {lines, line <> " " <> word},
          else: {[line | lines], @indent <> word}
      end)

    [last | lines] |> Enum.reverse() |> Enum.join("\n")
  end

  defp choices({:in, values}) when is_list(values),
    do: " One of #{Enum.map_join(values, ", ", &"`#{text(&1)}`")}."

  defp choices(_type), do: ""

  @doc """
  Returns the options and the other arguments. Raises `ArgumentError` for a switch that is not in the
  schema, with the nearest one, and for text that is not a value of the switch or is out of its bounds.
  """
  def parse!(argv, schema) do
    strict =
      for {name, spec} <- schema,
          do: {name, if(spec[:type] == :boolean, do: :boolean, else: :string)}

    {given, rest, invalid} = argv |> joined() |> OptionParser.parse(strict: strict)
    Enum.each(invalid, &refuse!(&1, schema))

    {for({name, text} <- given, do: {name, value!(name, text, schema[name])}), rest}
  end

  @doc """
  Parses the arguments of a task that takes at most one checkpoint, with the errors of `parse!/2`: returns the options
  with the schema's defaults, and the checkpoint or nil.
  """
  def parse_checkpoint!(argv, schema) do
    {given, rest} = parse!(argv, schema)
    length(rest) < 2 || raise ArgumentError, "unknown argument #{Enum.at(rest, 1)}"
    defaults = for {name, spec} <- schema, default = spec[:default], do: {name, default}
    {Keyword.merge(defaults, given), List.first(rest)}
  end

  @doc """
  Gives a `--resume` without a folder an empty one, for `parse!/2` and `resumed!/1`: it would take the next switch as
  its value.
  """
  @spec resumable([String.t()]) :: [String.t()]
  def resumable(["--" | _rest] = argv), do: argv

  def resumable(["--resume", "--" <> _ = next | rest]),
    do: ["--resume=" | resumable([next | rest])]

  def resumable(["--resume"]), do: ["--resume="]
  def resumable([argument | rest]), do: [argument | resumable(rest)]
  def resumable([]), do: []

  @doc """
  Returns the options of a run that `--resume` continues: `resume: true`, and its folder as `:out`. Without a folder it
  is that of `--out`.
  """
  @spec resumed!(keyword) :: keyword
  def resumed!(opts) do
    case Keyword.pop!(opts, :resume) do
      {"", opts} ->
        needed!(opts, :out)
        [resume: true] ++ opts

      {folder, opts} ->
        Path.expand(Keyword.get(opts, :out, folder)) == Path.expand(folder) ||
          raise ArgumentError,
                "--resume #{folder} continues in its folder, not in --out #{opts[:out]}"

        [resume: true, out: folder] ++ Keyword.delete(opts, :out)
    end
  end

  @doc "Returns the value of an option, and raises `ArgumentError` if it was not given."
  @spec needed!(keyword, atom) :: term
  def needed!(opts, name) do
    opts[name] || raise ArgumentError, "#{switch(name)} is required"
  end

  # Joins a switch and a negative number by `=`, because `OptionParser` would take the number for a switch.
  defp joined(["--" | _rest] = argv), do: argv

  defp joined(["--" <> _name = switch, <<"-", digit, _::binary>> = value | rest])
       when digit in ?0..?9,
       do: ["#{switch}=#{value}" | joined(rest)]

  defp joined([argument | rest]), do: [argument | joined(rest)]
  defp joined([]), do: []

  @doc """
  Prints the documentation of `task`, as `mix help` does, if `--help` or `-h` is among the arguments.
  Returns whether it printed.
  """
  def help?(argv, task) do
    asked? = Enum.any?(argv, &(&1 in ["--help", "-h"]))
    if asked?, do: Mix.Task.rerun("help", [Mix.Task.task_name(task)])
    asked?
  end

  @doc "The switch of an option: `--batch-size` for `:batch_size`."
  def switch(name), do: "--" <> (name |> to_string() |> String.replace("_", "-"))

  @doc """
  Returns the message of an error in the words of a command line: options of the schema become switches, and atoms
  become text.
  """
  def message(%Error{details: details} = error, schema) do
    spoken = Map.new(details, fn {key, value} -> {key, detail(key, value, schema)} end)
    Exception.message(%{error | details: spoken})
  end

  def message(error, schema),
    do: error |> Exception.message() |> speak(schema) |> Text.lines()

  @doc "Ends a task with the message of an error, see `message/2`."
  @spec fail!(Exception.t(), keyword) :: no_return
  def fail!(error, schema), do: error |> message(schema) |> Mix.raise()

  @doc "Returns the result of `work`. An `ArgumentError` ends the task as `fail!/2` does."
  @spec checked!(keyword, (() -> result)) :: result when result: term
  def checked!(schema, work) do
    work.()
  rescue
    error in ArgumentError -> fail!(error, schema)
  end

  defp detail(:differences, rows, schema),
    do: for(row <- rows, do: %{row | option: named_switch(row.option, schema)})

  # The subject of an error may be the bare name of an option.
  defp detail(key, text, schema) when key in [:what, :field] and is_binary(text) do
    spoken = named_switch(text, schema)
    if spoken == text, do: speak(text, schema), else: spoken
  end

  defp detail(key, text, schema) when key in [:expected, :reason, :mend] and is_binary(text),
    do: speak(text, schema)

  defp detail(_key, other, _schema), do: other

  defp named_switch(name, schema),
    do: if(name in names(schema), do: switch(name), else: name)

  # Replaces `resume: true`, `option :device`, `:gru`, and names with an underscore, which plain words never have.
  defp speak(text, schema) do
    names = schema |> names() |> any_of()
    long = schema |> names() |> Enum.filter(&String.contains?(&1, "_")) |> any_of()

    text
    |> cards()
    |> replace(~r/(?<![\w:"])(#{names}): true\b/, &switch/1)
    |> replace(~r/(?<![\w:"])(#{names}): :?(?=[\w\/])/, &(switch(&1) <> " "))
    |> replace(~r/\boption :(\w+)/, &switch/1)
    |> replace(~r/(?<![\w:"]):(#{names})\b/, &switch/1)
    |> replace(~r/(?<![\w:"\/-])(#{long})\b/, &switch/1)
    |> replace(~r/(?<![\w:"]):([a-z]\w*)/, & &1)
  end

  # Replaces `{:cuda, 1}`, `{:cuda, [0, 1]}`, and the descriptions of such tuples.
  defp cards(text) do
    text
    |> String.replace("{:cuda, a list, each a non-negative integer}", "cuda:N,M")
    |> String.replace("{:cuda, a non-negative integer}", "cuda:N")
    |> replace(~r/\{:cuda, \[?([\w, ]+)\]?\}/, &("cuda:" <> String.replace(&1, ", ", ",")))
  end

  # Without names, the pattern matches nothing.
  defp any_of([]), do: "(?!)"
  defp any_of(names), do: Enum.map_join(names, "|", &Regex.escape/1)

  defp replace(text, pattern, to),
    do: Regex.replace(pattern, text, fn _all, name -> to.(name) end)

  defp names(schema), do: schema |> Keyword.keys() |> Enum.map(&to_string/1)

  defp refuse!({switch, value}, schema) do
    known = Enum.map(schema, fn {name, _spec} -> switch(name) end)

    cond do
      switch in known and value == nil -> raise ArgumentError, "#{switch} needs a value"
      switch in known -> raise ArgumentError, "#{switch} cannot be #{inspect(value)}"
      true -> raise ArgumentError, "unknown option #{switch}#{did_you_mean(switch, known)}"
    end
  end

  defp did_you_mean(switch, known) do
    case Options.nearest(switch, known) do
      nil -> ""
      near -> ", did you mean #{near}?"
    end
  end

  defp value!(name, text, spec) do
    with {:ok, value} <- value(text, spec[:type]), {:ok, value} <- Options.fit(value, spec) do
      value
    else
      :error ->
        raise ArgumentError,
              "#{switch(name)} cannot be #{inspect(text)}, #{instead(text, spec)}"
    end
  end

  defp instead(text, spec) do
    value = with {:ok, value} <- value(text, spec[:type]), do: value

    case Options.near(text, spec) do
      nil -> "expected #{value |> Options.expected(spec) |> plain()}"
      near -> "did you mean #{text(near)}?"
    end
  end

  # Rewrites the description of a type as a command line spells it.
  defp plain(words),
    do:
      words
      |> cards()
      |> String.replace(~r/(?<!\w):(?=[a-z])/, "")
      |> String.replace(~r/\bnil\b/, "none")

  defp value(flag, :boolean) when is_boolean(flag), do: {:ok, flag}
  defp value(text, :float), do: whole(Float.parse(text))

  defp value(text, type) when type in [:integer, :pos_integer, :non_neg_integer],
    do: whole(Integer.parse(text))

  defp value(text, {:in, %Range{}}), do: whole(Integer.parse(text))
  defp value(text, {:in, values}), do: named(text, values)
  # Several paths are separated by commas.
  defp value(text, {:or, [:path, {:list, :path} | _]}),
    do: if(text =~ ",", do: value(text, {:list, :path}), else: {:ok, text})

  defp value(text, {:or, types}), do: Enum.find_value(types, :error, &one_of(text, &1))
  # `cuda:1` is the GPU with index 1.
  defp value("cuda:" <> index, {:tuple, [{:in, [:cuda]}, type]}) do
    with {:ok, index} <- value(index, type), do: {:ok, {:cuda, index}}
  end

  defp value(_text, {:tuple, _types}), do: :error
  defp value(text, {:list, type}), do: text |> String.split(",") |> each(type)
  defp value(text, type) when type in [:string, :path, :bytes, :any], do: {:ok, text}
  defp value(text, literal), do: named(text, [literal])

  defp one_of(text, type) do
    with :error <- value(text, type), do: nil
  end

  defp each(texts, type) do
    values = Enum.map(texts, &value(&1, type))
    if :error in values, do: :error, else: {:ok, Enum.map(values, &elem(&1, 1))}
  end

  # Finds the value with this text; nil is written `none`.
  defp named(text, values) do
    case Enum.find(values, :error, &(text(&1) == text)) do
      :error -> :error
      value -> {:ok, value}
    end
  end

  defp whole({number, ""}), do: {:ok, number}
  defp whole(_other), do: :error

  defp text(nil), do: "none"
  defp text(values) when is_list(values), do: Enum.map_join(values, ",", &text/1)
  defp text(value), do: to_string(value)
end
