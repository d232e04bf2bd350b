defmodule Sconce.Policy.Spec do
  alias Sconce.{Embedding, Game, Options, Preset, Temporal}
  alias Sconce.Game.Declaration
  alias Sconce.Policy.Head
  alias Sconce.Policy.Spec.{Native, Summary}

  @size [type: :pos_integer, max: 65_536]
  @controller [axis_buckets: 16, shoulder_buckets: 4]
  # The options of backbones are in `Sconce.Temporal`.
  @own [
    preset: [
      type: :any,
      default: nil,
      doc: "Name of a `Sconce.Preset`: its model gives the defaults of all other options."
    ],
    embedding: [
      type: :any,
      default: :melee,
      doc:
        "`:melee`, `{:vector, n}`, `{:net, spec}`, or a `Sconce.Game`, with options as in `{:melee, opts}`; see `Sconce.Embedding`."
    ],
    backbone: [
      type: :any,
      default: :gru,
      doc:
        "One of `Sconce.Temporal.backbones/0`, or `{name, options}`. The option `compat: :exphil` selects the " <>
          "formulas of ExPhil."
    ],
    heads: [
      type: :any,
      default: :independent,
      doc:
        "`:independent` or `:autoregressive`, for one head for each part of the game's input (six for a " <>
          "controller); or a list of named heads, each " <>
          "`{:bernoulli, n}`, `{:categorical, n}` or `{:gaussian, n, low, high}`."
    ],
    heads_kind: [
      type: {:in, [:independent, :autoregressive]},
      default: :independent,
      doc:
        "For a list of heads: `:autoregressive` heads see the choices of the heads before them."
    ],
    axis_buckets: @size ++ [default: 16, doc: "Steps of an axis of a stick, for a controller."],
    shoulder_buckets: @size ++ [default: 4, doc: "Steps of the shoulder, for a controller."],
    head_hidden_size: [
      type: :non_neg_integer,
      max: 65_536,
      default: 64,
      doc:
        "Width of the hidden layer of a head, half of it for the shoulder. With 0 the logits are a linear " <>
          "function of the trunk vector."
    ],
    stream_size:
      @size ++ [default: 128, doc: "Width of the residual stream of autoregressive heads."],
    prior: [
      type: :boolean,
      default: false,
      doc:
        "Adds log P(action | previous action) to the logits, if the heads choose the parts of the game's input."
    ],
    value_head: [
      type: :boolean,
      default: false,
      doc:
        "Adds a head that estimates the value of a frame, the discounted return. It reads the trunk, and its " <>
          "output is the last of the logits."
    ],
    critic: [
      type: :any,
      default: :shared,
      doc:
        "Trunk of the value head: `:shared` is the trunk of the other heads; `:separate` is a second backbone with " <>
          "the same options and its own weights, which only a linear value reads; `{name, options}` is another " <>
          "backbone. All but `:shared` need `value_head: true`."
    ]
  ]
  @backbone_names Temporal.schemas() |> Enum.flat_map(&Keyword.keys/1) |> Enum.uniq()
  @names Keyword.keys(@own) ++ @backbone_names

  @moduledoc """
  A policy as data: the embedding of a frame, the backbone with its memory, and the heads that choose. A Spec can be
  printed and compared, and every checkpoint contains one.

      iex> Sconce.Policy.Spec.new(embedding: {:vector, 2}, heads: [action: {:categorical, 2}])
      #Sconce.Policy.Spec<vector 2 -> gru 256x2 -> action(2)>
      iex> Sconce.Policy.Spec.new(backbone: :lstm, hidden_size: 128, heads: :autoregressive)
      #Sconce.Policy.Spec<melee -> lstm 128x2 -> autoregressive controller(81)>
      iex> Sconce.Policy.Spec.new(backbone: {:res_lstm, compat: :exphil, hidden_size: 64})
      #Sconce.Policy.Spec<melee -> res_lstm exphil 64x2 -> controller(81)>

  ## Names of heads

  The name of a head consists of at most 32 characters of a-z, 0-9 and _. When a Spec is made or loaded, a name
  becomes an atom if the VM already has that atom; otherwise it stays a string. A file therefore cannot create atoms,
  which are never freed. A program that contains `action.choices.fire` has the atom `:fire`, so its lookup works.

  `"fire"` and `:fire` are the same name, and both are accepted wherever a name is expected. Compare Specs that were
  made at different times by `Sconce.Policy.Spec.new(a) == Sconce.Policy.Spec.new(b)`.

      iex> Sconce.Policy.Spec.new(heads: [{"action", {:categorical, 2}}]) ==
      ...>   Sconce.Policy.Spec.new(heads: [action: {:categorical, 2}])
      true
      iex> Sconce.Policy.Spec.new(embedding: {:vector, 2}, heads: [{"nowhere_else_1", {:bernoulli, 1}}]).heads
      [%{name: "nowhere_else_1", kind: {:bernoulli, 1}, hidden_size: 64}]

  ## Options

  #{Options.docs(@own)}

  and the options of the backbone (`Sconce.Temporal.options/1`), such as `hidden_size: 128`. An option that does not
  apply to the chosen parts raises `ArgumentError`.
  """

  @enforce_keys [:embedding, :backbone, :heads, :heads_kind, :stream_size, :prior]
  defstruct @enforce_keys ++ [value_head: false, critic: :shared]

  @typedoc """
  A head chooses `n` bits, one of `n` classes, or `n` numbers from `low` to `high`, drawn from a Gaussian and squashed
  into the range by tanh.
  """
  @type head_kind ::
          {:bernoulli, pos_integer}
          | {:categorical, pos_integer}
          | {:gaussian, pos_integer, low :: float, high :: float}
  @typedoc "An atom if the VM has it, otherwise a string; see \"Names of heads\" above."
  @type head_name :: atom | String.t()
  @type head :: %{name: head_name, kind: head_kind, hidden_size: non_neg_integer}
  @type t :: %__MODULE__{
          embedding: Embedding.t(),
          backbone: {Temporal.backbone(), keyword},
          heads: [head],
          heads_kind: :independent | :autoregressive,
          stream_size: pos_integer,
          prior: boolean,
          value_head: boolean,
          critic: :shared | :separate | {Temporal.backbone(), keyword}
        }

  @controller_heads [:buttons, :main_x, :main_y, :c_x, :c_y, :shoulder]
  @max_heads 64
  @max_layers 256

  @doc """
  Returns a Spec with every option filled in. A given Spec is returned with the names of its heads as atoms, where
  this VM has these atoms now. Raises `ArgumentError` if an option is invalid.

      iex> Sconce.Policy.Spec.new(backbone: :gru, hiden_size: 64)
      ** (ArgumentError) unknown option :hiden_size, did you mean :hidden_size?

      iex> Sconce.Policy.Spec.new(backbone: :gru, hidden_sizes: [64])
      ** (ArgumentError) the :gru backbone has no option :hidden_sizes, did you mean :hidden_size?
  """
  @spec new(keyword | t) :: t
  def new(opts \\ [])

  def new(%__MODULE__{} = spec), do: renamed(spec, &local/1)

  def new(opts) do
    Options.keyword!(opts)
    for {name, _value} <- opts, do: Options.known!(name, @names)
    opts = Preset.model(opts)
    # `value_head: nil` means no value head.
    opts = Keyword.replace_lazy(opts, :value_head, &(&1 || false))
    {own, backbone} = Keyword.split(opts, Keyword.keys(@own))
    options = Options.validate!(own, @own)
    embedding = Embedding.new!(options[:embedding])
    {heads, kind} = heads!(options, own, embedding)

    spec = %__MODULE__{
      embedding: embedding,
      backbone: backbone!(options[:backbone], backbone, embedding),
      heads: heads,
      heads_kind: kind,
      stream_size: options[:stream_size],
      prior: options[:prior],
      value_head: options[:value_head]
    }

    spec |> critic!(options[:critic]) |> queue!()
  end

  defp critic!(%{value_head: false}, critic) when critic != :shared,
    do: raise(ArgumentError, "option :critic needs value_head: true, got: #{inspect(critic)}")

  defp critic!(spec, critic) when critic in [:shared, :separate], do: %{spec | critic: critic}

  defp critic!(spec, {name, opts}) when is_list(opts),
    do: %{spec | critic: separate(backbone!(name, opts, spec.embedding), spec.backbone)}

  defp critic!(_spec, other) do
    raise ArgumentError,
          "option :critic: expected :shared, :separate or {backbone, options}, got: #{inspect(other)}"
  end

  @doc false
  # The critic's backbone, or `:separate` if it is that of the policy.
  def separate(backbone, backbone), do: :separate
  def separate(critic, _backbone), do: critic

  @doc false
  # The options of `new/1` that make this Spec.
  @spec to_options(t) :: keyword
  def to_options(%__MODULE__{backbone: {name, options}} = spec) do
    [embedding: spec.embedding, prior: spec.prior, value_head: spec.value_head] ++
      [critic: spec.critic, backbone: name] ++
      options ++ kind_options(spec) ++ head_options(spec, controller?(spec))
  end

  # Rejects a Spec whose fields were set by hand and are invalid.
  defp whole!(spec) do
    whole? =
      match?(%{backbone: {name, _options}} when is_atom(name), spec) and
        Keyword.keyword?(elem(spec.backbone, 1)) and
        Embedding.whole?(spec.embedding) and
        heads?(spec.heads) and critic?(spec.critic)

    whole? || raise ArgumentError, "spec: expected a Spec of Sconce.Policy.Spec.new/1"
    spec
  end

  defp critic?({name, options}), do: is_atom(name) and Keyword.keyword?(options)
  defp critic?(critic), do: critic in [:shared, :separate]

  defp heads?(heads) when length(heads) > 0, do: Enum.all?(heads, &head?/1)
  defp heads?(_other), do: false

  defp head?(%{name: name, kind: kind, hidden_size: size}),
    do: (is_atom(name) or is_binary(name)) and Head.kind?(kind) and is_integer(size)

  defp head?(_other), do: false

  @doc false
  # A name as text. A term that is not a name is returned unchanged.
  @spec text(term) :: term
  def text(name) when is_atom(name), do: Atom.to_string(name)
  def text(other), do: other

  @doc false
  # The Spec with names as text, for another node: sending an atom would create the atom there.
  @spec portable(t) :: t
  def portable(spec), do: renamed(spec, &text/1)

  defp renamed(spec, name) do
    whole!(spec)
    %{spec | heads: Enum.map(spec.heads, &%{&1 | name: name.(&1.name)})}
  end

  @doc false
  # The name as an atom if this VM has that atom, otherwise as text. A name in a file never creates an atom.
  @spec local(head_name) :: head_name
  def local(name) when is_atom(name), do: name

  def local(name) do
    String.to_existing_atom(name)
  rescue
    ArgumentError -> name
  end

  @doc false
  # Heads as `{name, kind}`, from the schema of a corpus or a keyword list, with names by `local/1`.
  @spec named([{head_name, term}]) :: [{head_name, term}]
  def named(heads), do: for({name, kind} <- heads, do: {local(name), kind})

  @doc false
  # Whether the term is a list of `{name, value}` tuples.
  @spec named?(term) :: boolean
  def named?(list) when length(list) >= 0, do: Enum.all?(list, &name_and_value?/1)
  def named?(_other), do: false

  defp name_and_value?({name, _value}), do: is_atom(name) or is_binary(name)
  defp name_and_value?(_other), do: false

  defp kind_options(%{heads_kind: :independent, heads: [%{hidden_size: size} | _]}),
    do: [head_hidden_size: size]

  defp kind_options(%{heads_kind: :autoregressive, stream_size: size}), do: [stream_size: size]

  defp head_options(%{heads: [_buttons, %{kind: {_, axis}} | _] = heads} = spec, true) do
    %{kind: {_, shoulder}} = List.last(heads)
    [heads: spec.heads_kind, axis_buckets: axis - 1, shoulder_buckets: shoulder - 1]
  end

  defp head_options(spec, false),
    do: [heads: for(head <- spec.heads, do: {head.name, head.kind}), heads_kind: spec.heads_kind]

  @doc """
  Returns the names of the options of `new/1`, including those of all backbones.

      iex> options = Sconce.Policy.Spec.options()
      iex> Enum.all?([:embedding, :backbone, :heads, :hidden_size], &(&1 in options))
      true
  """
  @spec options() :: [atom]
  def options, do: @names

  @doc """
  Returns whether the heads are the six heads of a controller, so that actions have buttons and sticks.

      iex> Sconce.Policy.Spec.controller?(Sconce.Policy.Spec.new())
      true
  """
  @spec controller?(t) :: boolean
  def controller?(%__MODULE__{heads: [_ | _] = heads}) do
    Enum.map(heads, & &1.name) == @controller_heads and hd(heads).kind == {:bernoulli, 8} and
      Enum.all?(tl(heads), &match?(%{kind: {:categorical, _}}, &1))
  end

  # Backbone

  defp backbone!({name, opts}, flat, embedding) when is_list(opts),
    do: backbone!(name, opts |> Options.keyword!() |> Keyword.merge(flat), embedding)

  defp backbone!(name, opts, embedding) when is_atom(name) do
    schema = Temporal.options(name, opts[:compat])
    for {option, _value} <- opts, do: applies!(option, Keyword.keys(schema), name)
    options = opts |> Options.validate!(schema) |> input_norm(embedding) |> Native.rounded()
    sizes!(options[:hidden_sizes])
    Temporal.fits!(name, options)
    {name, options}
  end

  defp backbone!(other, _opts, _embedding) do
    raise ArgumentError,
          "option :backbone: expected one of #{inspect(Temporal.backbones())}, " <>
            "got: #{inspect(other)}"
  end

  defp applies!(option, known, backbone) do
    near = Options.nearest(option, known)

    option in known ||
      raise ArgumentError,
            "the #{inspect(backbone)} backbone has no option #{inspect(option)}" <>
              if(near, do: ", did you mean #{inspect(near)}?", else: "")
  end

  defp input_norm(options, embedding) do
    case options[:input_norm] do
      :auto ->
        Keyword.replace!(options, :input_norm, not Embedding.numbers?(embedding))

      _given ->
        options
    end
  end

  defp sizes!([]), do: raise(ArgumentError, "option :hidden_sizes: expected at least one layer")

  defp sizes!([_ | _] = sizes) when length(sizes) > @max_layers,
    do: raise(ArgumentError, "option :hidden_sizes: expected at most #{@max_layers} layers")

  defp sizes!(_sizes), do: :ok

  # Heads

  defp heads!(options, given, embedding) do
    case options[:heads] do
      kind when kind in [:independent, :autoregressive] ->
        refuse!(given, [:heads_kind], "the heads of a game: :heads gives their kind")
        kind!(given, kind)
        {of_game!(embedding, options, given), kind}

      [_ | _] = list ->
        refuse!(given, Keyword.keys(@controller), "a list of heads")
        kind!(given, options[:heads_kind])
        {list!(list, options[:head_hidden_size]), options[:heads_kind]}

      other when is_atom(other) ->
        Options.known!(other, [:independent, :autoregressive], "heads")

      other ->
        raise ArgumentError, "option :heads: expected a kind or a list, got: #{inspect(other)}"
    end
  end

  defp kind!(given, :independent), do: refuse!(given, [:stream_size], "independent heads")
  defp kind!(given, _), do: refuse!(given, [:head_hidden_size], "autoregressive heads")

  defp refuse!(given, names, noun) do
    for name <- names, Keyword.has_key?(given, name) do
      raise ArgumentError, "option #{inspect(name)} does not apply to #{noun}"
    end
  end

  defp of_game!({%Game{input: []} = game, _options}, _heads, _given) do
    raise ArgumentError, "option :heads: #{game.name} declares no input: give a list of heads"
  end

  defp of_game!({%Game{input: input}, _options}, options, given) do
    refuse!(
      given,
      Keyword.keys(@controller),
      "a declared game: its declaration gives the steps of each axis"
    )

    for part <- input,
        do: head(part.name, Declaration.kind_of_head(part), options[:head_hidden_size])
  end

  defp of_game!(_melee, options, _given), do: controller(options)

  defp controller(options) do
    size = options[:head_hidden_size]
    axis = {:categorical, options[:axis_buckets] + 1}
    shoulder = {:categorical, options[:shoulder_buckets] + 1}

    [head(:buttons, {:bernoulli, 8}, size)] ++
      for(name <- [:main_x, :main_y, :c_x, :c_y], do: head(name, axis, size)) ++
      [head(:shoulder, shoulder, if(size > 0, do: max(div(size, 2), 1), else: 0))]
  end

  defp list!(list, size) do
    named?(list) ||
      raise ArgumentError,
            "option :heads: expected a list such as [action: {:categorical, 2}], " <>
              "got: #{inspect(list)}"

    length(list) <= @max_heads || raise ArgumentError, "more than #{@max_heads} heads"
    Enum.each(list, fn {name, _kind} -> name!(name) end)
    list = named(list)

    list == Enum.uniq_by(list, &elem(&1, 0)) ||
      raise ArgumentError,
            "two heads have the same name: #{inspect(for {name, _} <- list, do: name)}"

    for {name, kind} <- list, do: head(name, Head.kind!(name, kind), size)
  end

  @doc false
  @spec name!(head_name) :: head_name
  def name!(name) do
    text(name) =~ ~r/\A[a-z0-9_]{1,32}\z/ ||
      raise ArgumentError,
            "a head's name has at most 32 characters of a-z, 0-9 and _, got: #{inspect(name)}"

    name
  end

  defp head(name, kind, hidden_size), do: %{name: name, kind: kind, hidden_size: hidden_size}

  defp queue!(%{embedding: {_game, options}} = spec) when is_list(options) do
    depth = Keyword.get(options, :queue_depth, 1)

    depth == 1 or reads_inputs?(spec) ||
      raise ArgumentError,
            "option :queue_depth of the embedding: #{depth} needs #{needed(spec)}"

    prior!(spec)
  end

  defp queue!(spec), do: prior!(spec)

  defp prior!(%{prior: false} = spec), do: spec

  defp prior!(spec) do
    reads_inputs?(spec) || raise ArgumentError, "option :prior needs #{needed(spec)}"
    spec
  end

  defp needed(%{embedding: {:melee, _options}}), do: "the heads of the controller"

  defp needed(%{embedding: {kind, _n}}) when kind in [:vector, :normalised, :net],
    do: "a game whose inputs are declared"

  defp needed(%{embedding: {game, _options}}), do: "heads for the input of #{game.name}"

  @doc false
  # Whether the heads choose the parts of the game's input, so that the policy can read previous inputs.
  @spec reads_inputs?(t) :: boolean
  def reads_inputs?(%__MODULE__{embedding: {kind, _}}) when kind in [:vector, :normalised, :net],
    do: false

  def reads_inputs?(%__MODULE__{embedding: {:melee, _options}} = spec), do: controller?(spec)

  def reads_inputs?(%__MODULE__{embedding: {game, _options}, heads: heads}),
    do: Declaration.chosen_by?(game, heads)

  # Its other forms

  @doc false
  @spec to_native(t) :: map
  def to_native(%__MODULE__{} = spec), do: spec |> whole!() |> Native.to()

  @doc false
  @spec from_native(map) :: t
  defdelegate from_native(native), to: Native, as: :from

  @doc false
  # `width` is the width of the embedded vector as text, or empty if it is unknown.
  @spec summary(t, String.t()) :: String.t()
  def summary(%__MODULE__{} = spec, width \\ ""), do: Summary.line(spec, width)

  @doc false
  @spec backbone_text({Temporal.backbone(), keyword}) :: String.t()
  defdelegate backbone_text(backbone), to: Summary, as: :backbone

  defimpl Inspect do
    def inspect(spec, _opts), do: "#Sconce.Policy.Spec<#{Sconce.Policy.Spec.summary(spec)}>"
  end
end
