defmodule Sconce.PPO.Settings do
  @moduledoc false
  # Checks the options of `Sconce.PPO` and converts them for the native side.

  alias Sconce.{Config, Env, Error, Native, Options}
  alias Sconce.Policy.Spec
  alias Sconce.PPO.Table

  @own [
    env: [type: :atom, doc: "Name of the environment, see `Sconce.Env`."],
    out: [type: :path, required: true, doc: "Folder of the run."],
    resume: [
      type: :boolean,
      default: false,
      doc: "Continues the run in `:out` from its last state."
    ],
    spec: [type: :any, default: nil, doc: "The Spec of the policy, instead of its options."],
    progress: [
      type: {:or, [nil, {:fun, 1}]},
      default: nil,
      doc: "Function that is called with each event."
    ]
  ]
  @run @own ++ Table.schema()
  # The policy of common implementations: two networks of tanh units without shared weights.
  @policy [backbone: :mlp, value_head: true, critic: :separate, head_hidden_size: 0]
  @mlp [
    hidden_sizes: [64, 64],
    activation: :tanh,
    layer_norm: false,
    residual: false,
    dropout: 0.0
  ]

  defstruct [:source, :out, :options, :resume, :progress]

  @doc "Returns the schema of all options except those of a Spec."
  def schema, do: @run

  @doc "Returns the options as Markdown, one list for each group."
  def docs do
    groups =
      for group <- Table.groups(), do: "`#{inspect(group)}`:\n\n#{docs(Table.group(group))}"

    Enum.join([docs(@own) | groups], "\n\n")
  end

  defp docs(schema), do: Options.docs(schema)

  @doc """
  Returns the settings of a run. `source` is `{:ok, {env, spec}}`, or the error of an environment or a record that
  cannot be read.
  """
  def new!(opts) do
    opts = opts |> Options.keyword!() |> Table.flat()
    names = Keyword.keys(@run) ++ Spec.options()
    for {name, _value} <- opts, do: Options.known!(name, names)
    {parts, own} = Keyword.split(opts, Spec.options())
    if own[:resume] == true, do: on!(parts, own), else: anew!(parts, own)
  end

  defp anew!(parts, own) do
    own = Options.validate!(own, @run)
    own[:env] || raise ArgumentError, "option :env is required: one of #{names()}"
    Env.name!(own[:env])
    settings(source(own, parts), own, %{})
  end

  # A resumed run passes only the given options to the native side, which reads the recorded ones itself.
  defp on!(parts, own) do
    own = Options.validate!(own, said(@run))
    out = Path.expand(own[:out])

    source =
      with {:ok, record} <- record(out),
           {:ok, recorded} <- recorded(record.spec, out) do
        env = if own[:env], do: to_string(own[:env]), else: record.env
        {:ok, {env, respecified(recorded, own[:spec], parts)}}
      end

    settings(source, own, %{resume: true})
  end

  defp respecified(recorded, nil, []), do: recorded
  defp respecified(_recorded, %Spec{} = spec, []), do: spec

  defp respecified(recorded, nil, parts),
    do: recorded |> Spec.to_options() |> Keyword.merge(parts) |> Spec.new()

  defp respecified(_recorded, spec, parts), do: spec(spec, parts, nil)

  defp said(schema) do
    for {name, spec} <- schema,
        do: {name, spec |> Keyword.delete(:default) |> Keyword.put(:required, name == :out)}
  end

  defp record(out) do
    with {:error, %Error{kind: :not_found} = error} <- Native.ppo_record(out) do
      mend = "start one with env: NAME and without resume: true"
      {:error, %{error | details: Map.put(error.details, :mend, mend)}}
    end
  end

  defp recorded(native, out) do
    spec = Spec.from_native(native)
    Spec.new(Spec.to_options(spec))
    {:ok, spec}
  rescue
    error in ArgumentError ->
      details = %{what: Path.join(out, "run.json"), reason: Exception.message(error)}
      {:error, %Error{kind: :corrupt, op: :learn, details: details}}
  end

  defp source(own, parts) do
    names = [:action_repeat, :frame_stack, :time_limit, :opponent]
    weights = [reward_weights: own[:reward_weights] || []]
    world = Keyword.take(own, names) ++ weights

    with {:ok, env} <- Env.spec(own[:env], world) do
      for name <- own[:opponents] || [],
          env.players != [] and not file?(name),
          do: Options.known!(to_string(name), env.players, "opponent of #{inspect(own[:env])}")

      {:ok, {to_string(own[:env]), spec(own[:spec], parts, env)}}
    end
  end

  defp spec(nil, parts, env) do
    for name <- [:embedding, :heads], parts[name] do
      raise ArgumentError,
            "option #{inspect(name)}: the environment has its own; give :spec for another policy"
    end

    parts = @policy |> fitting(parts[:heads_kind]) |> Keyword.merge(parts)
    backbone = if parts[:backbone] == :mlp, do: @mlp, else: []
    own = [embedding: {:vector, env.observation_size}, heads: env.heads]
    Spec.new(own ++ Keyword.merge(backbone, parts))
  end

  defp spec(%Spec{} = spec, [], _env), do: spec

  defp spec(%Spec{}, [{name, _value} | _], _env) do
    raise ArgumentError,
          "option #{inspect(name)} belongs to the Spec, which :spec gives as a whole"
  end

  defp spec(other, _parts, _env) do
    raise ArgumentError, "option :spec: expected a Sconce.Policy.Spec, got: #{inspect(other)}"
  end

  # Autoregressive heads have a stream instead of hidden layers.
  defp fitting(policy, :autoregressive), do: Keyword.delete(policy, :head_hidden_size)
  defp fitting(policy, _kind), do: policy

  defp settings(source, own, more) do
    options = own |> Keyword.take(Keyword.keys(Table.schema())) |> native()

    %__MODULE__{
      source: source,
      out: Path.expand(own[:out]),
      options: options,
      resume: Map.get(more, :resume, false),
      progress: own[:progress]
    }
  end

  defp native(options) do
    options
    |> Map.new()
    |> Map.replace_lazy(:policy, &(&1 && Path.expand(&1)))
    |> Map.replace_lazy(:teacher, &(&1 && Path.expand(&1)))
    |> Map.replace_lazy(:opponent, &(&1 && to_string(&1)))
    |> Map.replace_lazy(:opponents, fn names -> Enum.map(names || [], &opponent/1) end)
    |> Map.replace_lazy(:reward_weights, fn weights ->
      for {name, weight} <- weights || [], do: [to_string(name), weight]
    end)
    |> threads()
  end

  defp opponent(name), do: if(file?(name), do: Path.expand(name), else: to_string(name))

  @doc "Returns whether an opponent is a file, not a scripted player: scripted players have plain names."
  def file?(name), do: is_binary(name) and String.contains?(name, [".", "/", "\\"])

  defp threads(options) do
    case options[:threads] || Config.get(:threads) do
      nil -> options
      threads -> Map.put(options, :threads, threads)
    end
  end

  defp names, do: Enum.map_join(Env.names(), ", ", &inspect/1)
end
