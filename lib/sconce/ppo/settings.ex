defmodule Sconce.PPO.Settings do
  @moduledoc false
  # Checks the options of `Sconce.PPO` and converts them for the native side.

  alias Sconce.{Device, Env, Native, Net, Options, Policy, Pressure, Rollout, Run}
  alias Sconce.Env.Hosting
  alias Sconce.Policy.Spec
  alias Sconce.PPO.Table

  @own [
    env: [
      type: :any,
      doc:
        "Name of the environment, see `Sconce.Env`; a module, see `Sconce.Env.World`; or `{:live, rollout}`, see `Sconce.Rollout`."
    ],
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
    ],
    pressure: [
      type: :keyword,
      default: [],
      doc: "What follows a failure, in the options of `Sconce.Pressure.new/2`."
    ]
  ]
  # Replaces the native option, which has the name of a device that was found.
  @device Device.option()[:device]
  @run @own ++ Keyword.replace!(Table.schema(), :device, @device)
  # The policy of common implementations: two networks of tanh units without shared weights.
  @policy [backbone: :mlp, value_head: true, critic: :separate, head_hidden_size: 0]
  @mlp [
    hidden_sizes: [64, 64],
    activation: :tanh,
    layer_norm: false,
    residual: false,
    dropout: 0.0
  ]

  # Those of `bench/pixels.txt`.
  @rates_of_images [learning_rate: 7.0e-4, learning_rate_to: 1.0e-4]

  defstruct [:source, :out, :options, :resume, :progress, :hosting, :pressure]

  # Another attempt of a run takes these options and those that may change. The rest is recorded.
  @again ~w(env out progress pressure)a

  @doc "Returns the schema of all options except those of a Spec."
  def schema, do: @run

  @doc "Returns the options as Markdown, one list for each group."
  def docs do
    groups =
      for group <- Table.groups() do
        schema = group |> Table.group() |> Keyword.replace(:device, @device)
        "`#{inspect(group)}`:\n\n#{docs(schema)}"
      end

    Enum.join([docs(@own) | groups], "\n\n")
  end

  defp docs(schema), do: Options.docs(schema)

  @doc """
  Returns the settings of a run. `source` is `{:ok, {env, spec, environments}}`, or the error of an environment or a record that
  cannot be read.
  """
  def new!(opts) do
    opts = opts |> Options.keyword!() |> Table.flat()
    names = Keyword.keys(@run) ++ Spec.options()
    for {name, _value} <- opts, do: Options.known!(name, names)
    {parts, own} = Keyword.split(opts, Spec.options())
    if own[:resume] == true, do: on!(parts, own), else: anew!(parts, own)
  end

  @doc """
  Returns the settings of a measurement before a run, and the options of the measurement, whose schema is `schema`. A
  measurement needs no `:out`.
  """
  def measured!(opts, schema) do
    opts = opts |> Options.keyword!() |> Table.flat()
    {more, opts} = Keyword.split(opts, Keyword.keys(schema))
    names = Keyword.keys(@run ++ schema) ++ Spec.options()
    for {name, _value} <- opts, do: Options.known!(name, names)
    {parts, own} = Keyword.split(opts, Spec.options())
    given = own
    own = Options.validate!(own, Keyword.put(@run, :out, type: {:or, [nil, :path]}))
    own[:resume] && raise ArgumentError, "option :resume: only a new run can be measured"
    env = own[:env] || raise ArgumentError, "option :env is required: one of #{names()}"

    if match?({:live, _rollout}, env),
      do: raise(ArgumentError, "option :env: live games set the pace of their run")

    Env.name!(env)
    source = world(own, parts)
    settings = %{settings(source, rated(own, given, source), false) | out: nil}
    {settings, more |> Options.validate!(schema) |> Map.new()}
  end

  @doc "Returns the options of another attempt of a run: from its saved state or anew, on its own device if `device` is nil."
  @spec again(keyword, boolean, Device.choice() | nil) :: keyword
  def again(opts, saved?, device),
    do: opts |> Table.flat() |> Run.Settings.again(@again ++ Table.free(), saved?, device)

  defp anew!(parts, own) do
    given = own
    own = Options.validate!(own, @run)
    own[:env] || raise ArgumentError, "option :env is required: one of #{names()}"
    {source, own} = source(own, parts)
    settings(source, rated(own, given, source), false)
  end

  # Convolutions of images need a smaller learning rate than networks of vectors.
  defp rated(own, given, {:ok, {env, %Spec{embedding: {:net, %Net.Spec{} = net}}, _many}})
       when not is_tuple(env) do
    images? = Enum.any?(net.inputs, &match?(%{shape: [_channels, _height, _width]}, &1))
    given? = Enum.any?([:learning_rate, :learning_rate_to], &Keyword.has_key?(given, &1))
    if images? and not given?, do: Keyword.merge(own, @rates_of_images), else: own
  end

  defp rated(own, _given, _source), do: own

  defp on!(parts, own) do
    own = Options.validate!(own, Run.Settings.given(@run, [:out]))
    out = Path.expand(own[:out])

    source =
      with {:ok, record} <- record(out),
           {:ok, recorded} <- Run.Settings.spec(record.spec, out, :learn) do
        spec = respecified(recorded, own[:spec], parts)
        env = own[:env] || recorded_env(record.env)
        if env == "live", do: raise(ArgumentError, "option :env: this run needs {:live, rollout}")
        # A module with a wrong description raises here, and not in the process of the run.
        if Hosting.world?(env), do: Env.spec(env)
        {:ok, {env, spec, own[:environments] || record.options.world.environments}}
      end

    # A resumed run keeps its device unless another device is given.
    settings(source, Keyword.put_new(own, :device, :as_before), true)
  end

  # A name that is not found is the error of the native side.
  defp recorded_env(text), do: Hosting.named(text) || text

  defp respecified(recorded, nil, []), do: recorded
  defp respecified(_recorded, %Spec{} = spec, []), do: spec

  defp respecified(recorded, nil, parts),
    do: recorded |> Spec.to_options() |> Keyword.merge(parts) |> Spec.new()

  defp respecified(_recorded, spec, parts), do: spec(spec, parts, nil)

  defp record(out) do
    mend = "start one with env: NAME and without resume: true"
    out |> Native.ppo_record() |> Run.Settings.record(mend)
  end

  # A live run has the Spec of its serving, and begins with its weights.
  defp source(own, parts) do
    case own[:env] do
      {:live, rollout} ->
        live(rollout, own, parts)

      env ->
        Env.name!(env)
        {world(own, parts), own}
    end
  end

  defp live(rollout, own, parts) do
    if parts != [] or own[:spec],
      do: raise(ArgumentError, "option :spec: a live run has the Spec of its serving")

    with {:ok, %{policy: policy, terms: terms}} <- Rollout.source(rollout),
         :ok <- weighted(own[:reward_weights], terms),
         {:ok, path} <- first(policy, own) do
      source = {:ok, {own[:env], policy.spec, own[:environments]}}
      {source, Keyword.put(own, :policy, path)}
    else
      error -> {error, own}
    end
  end

  defp weighted(weights, terms) do
    for {name, _weight} <- weights || [], do: Options.known!(name, terms, "reward term")
    :ok
  end

  # Weights that have learned have notes of it. A run that normalises observations refuses them, and begins with new
  # ones, as it does in environments.
  defp first(policy, own) do
    with {:ok, %{notes: notes}} <- Policy.info(policy) do
      if own[:normalise_observations] && !own[:policy] && notes == nil,
        do: {:ok, nil},
        else: saved(policy, own)
    end
  end

  # The file of the first weights. A folder that has a run is refused later, and not written to.
  defp saved(policy, own) do
    out = Path.expand(own[:out])
    path = own[:policy] || Path.join(out, "first.safetensors")

    if own[:policy] || File.exists?(Path.join(out, "run.json")) do
      {:ok, path}
    else
      # If the folder cannot be made, the file cannot be written.
      _ = File.mkdir_p(out)
      with :ok <- Policy.save(policy, path), do: {:ok, path}
    end
  end

  defp world(own, parts) do
    names = [:action_repeat, :frame_stack, :time_limit, :opponent]
    weights = [reward_weights: own[:reward_weights] || []]
    world = Keyword.take(own, names) ++ weights

    if own[:processes] && not Hosting.world?(own[:env]),
      do: raise(ArgumentError, "option :processes: #{inspect(own[:env])} is native")

    with {:ok, env} <- Env.spec(own[:env], world) do
      for name <- own[:opponents] || [],
          env.seats == 2 and not file?(name),
          do: Options.known!(to_string(name), env.players, "opponent of #{inspect(own[:env])}")

      {:ok, {own[:env], spec(own[:spec], parts, env), own[:environments]}}
    end
  end

  defp spec(nil, parts, env) do
    for name <- [:embedding, :heads], parts[name], not match?({:net, _}, parts[name]) do
      raise ArgumentError,
            "option #{inspect(name)}: the environment has its own; give :spec for another policy"
    end

    parts = @policy |> fitting(parts[:heads_kind]) |> Keyword.merge(parts)
    backbone = if parts[:backbone] == :mlp, do: @mlp, else: []
    own = [embedding: embedding(env.observation_shape), heads: env.heads]
    own |> Keyword.merge(backbone) |> Keyword.merge(parts) |> Spec.new()
  end

  defp spec(%Spec{} = spec, [], _env), do: spec

  defp spec(%Spec{}, [{name, _value} | _], _env) do
    raise ArgumentError,
          "option #{inspect(name)} belongs to the Spec, which :spec gives as a whole"
  end

  defp spec(other, _parts, _env) do
    raise ArgumentError, "option :spec: expected a Sconce.Policy.Spec, got: #{inspect(other)}"
  end

  # A policy sees images through a network.
  defp embedding([_channels, _height, _width] = image), do: {:net, Net.Spec.image(image, 64)}
  defp embedding([size]), do: {:vector, size}

  # Autoregressive heads have a stream instead of hidden layers.
  defp fitting(policy, :autoregressive), do: Keyword.delete(policy, :head_hidden_size)
  defp fitting(policy, _kind), do: policy

  defp settings(source, own, resume?) do
    {source, device} = able(source, own[:device])
    options = own |> Keyword.take(Keyword.keys(Table.schema())) |> native() |> Map.merge(device)

    %__MODULE__{
      source: source,
      out: own[:out] && Path.expand(own[:out]),
      options: options,
      resume: resume?,
      progress: own[:progress],
      pressure: Pressure.new(:train, own[:pressure] || []),
      hosting: [own[:processes], own[:step_timeout_ms] || @run[:step_timeout_ms][:default]]
    }
  end

  # `await/2` returns the error of an unusable device.
  defp able({:ok, _} = source, :as_before), do: {source, %{}}

  defp able({:ok, _} = source, choice) do
    case Device.resolve(choice) do
      {:ok, device} -> {source, %{device: to_string(device)}}
      error -> {error, %{}}
    end
  end

  defp able(error, _choice), do: {error, %{}}

  defp native(options) do
    options
    |> Map.new()
    |> Map.delete(:device)
    |> Map.replace_lazy(:policy, &(&1 && Path.expand(&1)))
    |> Run.Settings.teacher()
    |> Map.replace_lazy(:opponent, &(&1 && to_string(&1)))
    |> Map.replace_lazy(:opponents, fn names -> Enum.map(names || [], &opponent/1) end)
    |> Map.replace_lazy(:reward_weights, fn weights ->
      for {name, weight} <- weights || [], do: [to_string(name), weight]
    end)
    |> Run.Settings.threads()
  end

  defp opponent(name), do: if(file?(name), do: Path.expand(name), else: to_string(name))

  @doc "Returns whether an opponent is a file, not a scripted player: scripted players have plain names."
  def file?(name), do: is_binary(name) and String.contains?(name, [".", "/", "\\"])

  defp names, do: Enum.map_join(Env.names(), ", ", &inspect/1)
end
