defmodule Sconce.Options do
  @moduledoc """
  Validates options against a schema, and prints the schema into documentation.

  A schema is a keyword list of option names, each with

    * `:type` - one of the types below, `:any` by default;
    * `:default` - the value when the option is not given;
    * `:required` - `true` when it must be given;
    * `:min`, `:max` - inclusive bounds of a number; `:above`, `:below` - exclusive bounds;
    * `:doc` - the effect of the option in a sentence.

  | type | accepts |
  |---|---|
  | `:pos_integer`, `:non_neg_integer`, `:integer` | an integer in that range |
  | `:float` | a float, or an integer, which is converted |
  | `:boolean`, `:atom`, `:map`, `:keyword`, `:pid` | a term of that type |
  | `:string` | a binary |
  | `:bytes` | a positive integer, or text such as `"8GB"` (10^9) and `"8GiB"` (2^30), which is converted |
  | `:path` | text in UTF-8 |
  | `{:in, values}` | one of a list or range of values |
  | `{:list, type}` | a list of that type |
  | `{:tuple, types}` | a tuple of those types |
  | `{:or, types}` | the first type that fits; a literal such as `nil` or `:auto` accepts itself |
  | `{:fun, arity}` | a function |
  | `:any` | everything |

  """

  @type schema :: [{atom, keyword}]

  @literals [nil, true, false]
  # Holds for integers that fit into the native i64 or u64.
  defguardp crosses(value) when value >= -0x8000_0000_0000_0000 and value <= 0xFFFF_FFFF_FFFF_FFFF

  # Below this similarity a guess is more likely to mislead than to help.
  @similar 0.55
  # The most bytes of a name that are compared, and of a size given as text.
  @longest 64

  @doc """
  Returns the options with defaults added and numbers converted, in the order of the schema.

  Raises `ArgumentError` that names the option, its value and the expectation.

      iex> schema = [batch_size: [type: :pos_integer, default: 256, doc: "Windows in a step."]]
      iex> Sconce.Options.validate!([], schema)
      [batch_size: 256]
      iex> Sconce.Options.validate!([bacth_size: 32], schema)
      ** (ArgumentError) unknown option :bacth_size, did you mean :batch_size?
  """
  @spec validate!(keyword, schema) :: keyword
  def validate!(opts, schema) do
    keyword!(opts)
    schema!(schema)
    names = Keyword.keys(schema)
    Enum.each(opts, fn {name, _value} -> known!(name, names) end)

    for {name, spec} <- schema, {:ok, value} <- [fetch(opts, name, spec)] do
      {name, value}
    end
  end

  @doc """
  Returns the schema as a Markdown list.

      iex> Sconce.Options.docs(batch_size: [type: :pos_integer, default: 256, doc: "Windows in a step."])
      "  * `:batch_size` - a positive integer, default `256`. Windows in a step."
  """
  @spec docs(schema) :: String.t()
  def docs(schema) do
    schema!(schema)

    Enum.map_join(schema, "\n", fn {name, spec} ->
      "  * `#{inspect(name)}` - #{describe(spec)}#{default_text(spec)}. #{spec[:doc]}"
      |> String.trim_trailing()
    end)
  end

  @doc """
  Returns the candidate that is spelled most like `name`, or nil if none is similar.

      iex> Sconce.Options.nearest(:gur, [:mlp, :lstm, :gru])
      :gru
  """
  @spec nearest(term, [term]) :: term | nil
  def nearest(name, candidates) do
    candidates
    |> list!("candidates")
    |> Enum.map(&{similarity(name, &1), &1})
    |> Enum.filter(fn {similarity, _candidate} -> similarity >= @similar end)
    |> Enum.max_by(&elem(&1, 0), fn -> {0, nil} end)
    |> elem(1)
  end

  defp schema!(schema) do
    Keyword.keyword?(schema) || argument!("schema", schema, "a keyword list")
  end

  defp similarity(name, candidate) do
    with text when text != nil <- short(name), other when other != nil <- short(candidate) do
      String.jaro_distance(text, other)
    else
      nil -> 0.0
    end
  end

  # Only atoms and text can be compared by spelling.
  defp short(name) when is_atom(name), do: name |> Atom.to_string() |> short()

  defp short(name) when is_binary(name) and byte_size(name) <= @longest,
    do: if(String.valid?(name), do: name)

  defp short(_other), do: nil

  @doc """
  Raises `ArgumentError` unless `name` is among `names`; `noun` is the noun in the message, such as "preset".

      iex> Sconce.Options.known!(:quick, [:quick, :full], "preset")
      :ok
      iex> Sconce.Options.known!(:quik, [:quick, :full], "preset")
      ** (ArgumentError) unknown preset :quik, did you mean :quick?
  """
  @spec known!(term, [term], String.t()) :: :ok
  def known!(name, names, noun \\ "option")

  def known!(_name, _names, noun) when not is_binary(noun),
    do: argument!("noun", noun, "a string")

  def known!(name, names, noun) do
    if name in list!(names, "names"),
      do: :ok,
      else: raise(ArgumentError, unknown(name, names, noun))
  end

  defp list!(list, _name) when length(list) >= 0, do: list
  defp list!(%Range{} = range, _name), do: range
  defp list!(other, name), do: argument!(name, other, "a list")

  defp unknown(name, names, noun) do
    case nearest(name, names) do
      nil when names == [] -> "unknown #{noun} #{shown(name)}, there is none"
      nil -> "unknown #{noun} #{shown(name)}, expected one of #{listed(names)}"
      near -> "unknown #{noun} #{shown(name)}, did you mean #{inspect(near)}?"
    end
  end

  @doc false
  # Checks a path that is an argument, not an option.
  @spec path!(Path.t()) :: String.t()
  def path!(path) do
    text = text(path)
    if path?(text), do: text, else: raise(ArgumentError, "expected a path, got: #{shown(path)}")
  end

  defp text(path) when is_list(path) do
    List.to_string(path)
  rescue
    _not_chardata -> nil
  end

  defp text(path), do: path

  defp path?(value), do: is_binary(value) and String.valid?(value)

  @doc false
  # Raises an error that names an argument.
  @spec argument!(String.t(), term, String.t()) :: no_return
  def argument!(name, value, expected) do
    raise ArgumentError, "#{name}: expected #{expected}, got: #{shown(value)}"
  end

  @doc false
  # Raises an error that names an argument which is no enumerable. An error of another value, such as one inside the app's
  # stream, stays as it is.
  @spec enumerable!(Exception.t(), term, String.t(), String.t(), Exception.stacktrace()) ::
          no_return
  def enumerable!(%Protocol.UndefinedError{value: value}, value, name, expected, _stack),
    do: argument!(name, value, expected)

  def enumerable!(error, _given, _name, _expected, stack), do: reraise(error, stack)

  @doc false
  @spec shown(term) :: String.t()
  def shown(value), do: inspect(value, limit: 20, printable_limit: 200)

  @doc false
  # Checks that options are a keyword list, before any option is read.
  @spec keyword!(term) :: keyword
  def keyword!(opts) do
    if Keyword.keyword?(opts),
      do: opts,
      else: raise(ArgumentError, "expected options, got: #{shown(opts)}")
  end

  # The longest timeout in milliseconds, about 46 days; an Erlang timer takes at most 2^32 - 1.
  @most_ms 4_000_000_000

  @doc false
  @spec timeout!(term) :: timeout
  def timeout!(timeout) when timeout == :infinity or timeout in 0..@most_ms, do: timeout

  def timeout!(timeout),
    do: argument!("timeout", timeout, "0 to #{@most_ms} milliseconds or :infinity")

  @doc false
  # Checks that the term can be the name of a process.
  @spec name!(term) :: term
  def name!({:global, _name} = name), do: name
  def name!(name) when is_atom(name), do: name

  def name!(name) do
    if match?({:via, _module, _name}, name) and server?(name),
      do: name,
      else: argument!("option :name", name, "an atom, {:global, term} or {:via, module, term}")
  end

  @doc false
  # Returns whether the term can be the server of a call: a pid, a name, or `{name, node}`.
  @spec server?(term) :: boolean
  def server?(pid) when is_pid(pid), do: true
  def server?(name) when is_atom(name), do: name not in @literals
  def server?({:global, _name}), do: true
  def server?({:via, module, _name}), do: is_atom(module) and Code.ensure_loaded?(module)
  def server?({name, node}), do: is_atom(name) and is_atom(node)
  def server?(_other), do: false

  @doc false
  # Returns the converted value, or `:error` if it does not fit.
  @spec fit(term, keyword) :: {:ok, term} | :error
  def fit(value, spec) do
    with {:ok, cast} <- cast(Keyword.get(spec, :type, :any), value) do
      if within?(cast, spec), do: {:ok, cast}, else: :error
    end
  end

  defp fetch(opts, name, spec) do
    case Keyword.fetch(opts, name) do
      {:ok, value} -> {:ok, cast!(name, value, spec)}
      :error -> default(name, spec)
    end
  end

  defp default(name, spec) do
    if spec[:required] do
      raise ArgumentError, "option #{inspect(name)} is required: #{describe(spec)}"
    end

    Keyword.fetch(spec, :default)
  end

  defp cast!(name, value, spec) do
    case fit(value, spec) do
      {:ok, cast} ->
        cast

      :error ->
        raise ArgumentError,
              "option #{inspect(name)}: expected #{expected(value, spec)}, got: " <>
                shown(value) <> did_you_mean(value, spec)
    end
  end

  defp did_you_mean(value, spec) do
    case near(value, spec) do
      nil -> ""
      near -> ", did you mean #{inspect(near)}?"
    end
  end

  @doc false
  # Returns the literal of the type that is spelled most like `value`, or nil.
  @spec near(term, keyword) :: term | nil
  def near(value, spec) when (is_atom(value) and value not in @literals) or is_binary(value) do
    names = named(spec[:type])
    # `:gpu` means `:cuda`, although `:cpu` is the nearest spelling.
    if value in [:gpu, "gpu"] and :cuda in names, do: :cuda, else: nearest(value, names)
  end

  def near(_value, _spec), do: nil

  defp named({:in, values}) when is_list(values), do: values
  defp named({:or, types}), do: Enum.flat_map(types, &named/1)
  defp named(_type), do: []

  @doc false
  # Describes what was expected instead of `value`.
  @spec expected(term, keyword) :: String.t()
  def expected(value, _spec) when is_integer(value) and not crosses(value),
    do: "an integer of 64 bits"

  def expected(_value, spec), do: describe(spec)

  defp within?(value, _spec) when is_integer(value) and not crosses(value), do: false

  defp within?(value, spec) when is_number(value) do
    Enum.all?(spec, fn
      {:min, least} -> value >= least
      {:max, most} -> value <= most
      {:above, bound} -> value > bound
      {:below, bound} -> value < bound
      _other -> true
    end)
  end

  defp within?(_value, _spec), do: true

  defp cast(:any, value), do: {:ok, value}
  defp cast(:integer, value) when is_integer(value), do: {:ok, value}
  defp cast(:pos_integer, value) when is_integer(value) and value > 0, do: {:ok, value}
  defp cast(:non_neg_integer, value) when is_integer(value) and value >= 0, do: {:ok, value}
  defp cast(:float, value) when is_float(value), do: {:ok, value}
  defp cast(:float, value) when is_integer(value) and crosses(value), do: {:ok, value / 1}
  defp cast(:boolean, value) when is_boolean(value), do: {:ok, value}
  defp cast(:atom, value) when is_atom(value), do: {:ok, value}
  defp cast(:map, value) when is_map(value), do: {:ok, value}
  defp cast(:pid, value) when is_pid(value), do: {:ok, value}
  defp cast(:string, value) when is_binary(value), do: {:ok, value}
  defp cast(:bytes, value), do: bytes(value)
  defp cast(:path, value), do: if(path?(value), do: {:ok, value}, else: :error)
  defp cast({:fun, arity}, value) when is_function(value, arity), do: {:ok, value}
  defp cast({:in, values}, value), do: if(value in values, do: {:ok, value}, else: :error)
  # `length/1` raises for an improper list, so that the guard fails.
  defp cast({:list, type}, values) when length(values) >= 0,
    do: cast_each(values, &cast(type, &1))

  defp cast({:or, types}, value), do: Enum.find_value(types, :error, &cast_one_of(&1, value))

  defp cast(:keyword, value),
    do: if(Keyword.keyword?(value), do: {:ok, value}, else: :error)

  defp cast({:tuple, types}, value) when is_tuple(value) and tuple_size(value) == length(types) do
    pairs = Enum.zip(types, Tuple.to_list(value))

    with {:ok, values} <- cast_each(pairs, fn {type, item} -> cast(type, item) end) do
      {:ok, List.to_tuple(values)}
    end
  end

  defp cast(_type, _value), do: :error

  defp cast_one_of(type, value) do
    case cast(type, value) do
      {:ok, cast} -> {:ok, cast}
      :error -> if literal?(type) and type == value, do: {:ok, value}
    end
  end

  defp cast_each(items, cast) do
    Enum.reduce_while(items, {:ok, []}, fn item, {:ok, done} ->
      case cast.(item) do
        {:ok, value} -> {:cont, {:ok, [value | done]}}
        :error -> {:halt, :error}
      end
    end)
    |> case do
      {:ok, done} -> {:ok, Enum.reverse(done)}
      :error -> :error
    end
  end

  @units %{
    "" => 1,
    "B" => 1,
    "KB" => 1_000,
    "MB" => 1_000_000,
    "GB" => 1_000_000_000,
    "KIB" => 1024,
    "MIB" => 1_048_576,
    "GIB" => 1_073_741_824
  }

  defp bytes(n) when is_integer(n) and n > 0, do: {:ok, n}

  defp bytes(text) when is_binary(text) and byte_size(text) <= @longest do
    with {number, unit} <- Float.parse(text),
         {:ok, each} <- Map.fetch(@units, unit |> String.trim() |> String.upcase()),
         n when n > 0 <- round(number * each) do
      {:ok, n}
    else
      _ -> :error
    end
  rescue
    # The integer is too large for a float.
    _overflow in [ArgumentError, ArithmeticError] -> :error
  end

  defp bytes(_other), do: :error

  @names [
    any: "anything",
    integer: "an integer",
    pos_integer: "a positive integer",
    non_neg_integer: "a non-negative integer",
    float: "a number",
    boolean: "a boolean",
    atom: "an atom",
    map: "a map",
    keyword: "a keyword list",
    pid: "a pid",
    string: "a string",
    bytes: "bytes, as in 8GB",
    path: "a path"
  ]

  defp literal?(type),
    do: type in @literals or (is_atom(type) and type not in Keyword.keys(@names))

  @doc false
  # Describes the type and the bounds of an option.
  @spec describe(keyword) :: String.t()
  def describe(spec) when is_list(spec) do
    type_name(Keyword.get(spec, :type, :any)) <>
      bounds(Keyword.take(spec, [:min, :max, :above, :below]))
  end

  defp bounds(min: min, max: max), do: " from #{min} to #{max}"
  defp bounds(max: max, min: min), do: " from #{min} to #{max}"
  defp bounds([]), do: ""
  defp bounds([bound | more]), do: bound(bound) <> Enum.map_join(more, &(" and" <> bound(&1)))

  defp bound({:min, min}), do: " of at least #{min}"
  defp bound({:max, max}), do: " of at most #{max}"
  defp bound({:above, above}), do: " above #{above}"
  defp bound({:below, below}), do: " below #{below}"

  defp type_name({:in, %Range{} = range}), do: "one of #{inspect(range)}"
  defp type_name({:in, [value]}), do: inspect(value)
  defp type_name({:in, values}), do: "one of #{listed(values)}"
  defp type_name({:list, type}), do: "a list, each #{type_name(type)}"
  defp type_name({:tuple, types}), do: "{#{Enum.map_join(types, ", ", &type_name/1)}}"
  defp type_name({:or, types}), do: Enum.map_join(types, " or ", &type_name/1)
  defp type_name({:fun, arity}), do: "a function of #{arity}"
  defp type_name(type), do: Keyword.get(@names, type, inspect(type))

  defp default_text(spec) do
    cond do
      spec[:required] -> ", required"
      Keyword.has_key?(spec, :default) -> ", default `#{inspect(spec[:default])}`"
      true -> ""
    end
  end

  defp listed(values), do: Enum.map_join(values, ", ", &inspect/1)
end
