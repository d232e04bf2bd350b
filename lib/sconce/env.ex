defmodule Sconce.Env do
  alias Sconce.{Error, Native, Options, Policy, Tensor}
  alias Sconce.Env.{Catalogue, Drawing, Hosting, Inputs, Playing}
  alias Sconce.Native.Call
  alias Sconce.Policy.Head

  @moduledoc """
  Environments: worlds that answer inputs with observations and rewards.

  | name | input | observation |
  |---|---|---|
  | `:cart_pole` | push left or right | position, velocity, angle and angular velocity of a pole on a cart (CartPole-v1) |
  | `:cart_pole_velocity_less` | push left or right | position and angle: a policy needs memory |
  | `:pixel_cart_pole` | the same as `:cart_pole` | 64 x 64 grey values of an image of the cart and the pole |
  | `:mountain_car` | push left, not at all, or right | position and velocity of a car in a valley (MountainCar-v0) |
  | `:mountain_car_continuous` | a force | as above (MountainCarContinuous-v0) |
  | `:acrobot` | a torque of -1, 0 or 1 | sines, cosines and velocities of two links (Acrobot-v1) |
  | `:pendulum` | a torque | cosine, sine and velocity of a pendulum (Pendulum-v1) |
  | `:duel` | a move, and an act: wait, strike, guard or throw | two fencers, each of whom hides its act until it lands |
  | `:billiards` | a shot: angle, power, top spin and side spin | eight balls on a table, see `Sconce.Env.Billiards` |
  | `:billiards_published` | as above, without spin | as above, with published physics that are wrong: for comparisons only |

  Physics, rewards and limits are Gymnasium's; the duel and billiards are Sconce's own. `Sconce.PPO` learns in them, and `play/3`
  evaluates a policy. A world that is written in Elixir is a module, see `Sconce.Env.World`; `Sconce.Env.Gymnasium` steps
  those of Python.

      iex> {:ok, env} = Sconce.Env.new(:cart_pole, count: 2, seed: 1)
      iex> env
      #Sconce.Env<cart_pole · 2 environments · 2 rows · 0 steps>
      iex> {:ok, step} = Sconce.Env.step(env, [0, 1])
      iex> {byte_size(step.observation), step.reward, step.ended}
      {32, <<1.0::float-32-little, 1.0::float-32-little>>, []}

  ## Rows

  `count` environments step together. Each has a row of inputs and of observations, or two in `:duel` without an
  `:opponent`: row `2 * i` is the first seat of environment `i`. Numbers are 32-bit floats, little-endian, row-major.

  ## Buffers

  `put/2`, `advance/1` and `read/2` do the work of `step/2` in parts. The environments keep inputs and results on the
  native side, so a loop that reads little allocates little:

      iex> {:ok, env} = Sconce.Env.new(:pendulum, count: 4096)
      iex> Sconce.Env.put(env, :binary.copy(<<0.5::float-32-little>>, 4096))
      :ok
      iex> Sconce.Env.advance(env)
      {:ok, 0}
      iex> {:ok, rewards} = Sconce.Env.read(env, :reward)
      iex> byte_size(rewards)
      16384

  ## Processes

  Any process may use the environments, one call at a time: a second call while one runs is an error of kind `:busy`.
  Short steps run on the caller's scheduler (`lane: :inline`), and steps that take more than 100 us on a native thread
  (`lane: :worker`). The environments end with their last reference.
  """

  @enforce_keys [:ref, :name, :spec, :count, :rows, :lane, :step_us]
  defstruct @enforce_keys

  @typedoc """
  The description of an environment.

  | key | content |
  |---|---|
  | `name` | its name |
  | `observation_size` | numbers in an observation |
  | `observation_shape` | `[channels, height, width]` of an image, or `[n]` |
  | `num_labels` | numbers in an input |
  | `heads` | `{name, kind}` of each part of an input, for the heads of a `Sconce.Policy.Spec` |
  | `seats` | players that are not scripted |
  | `time_limit` | steps after which an episode is cut |
  | `reward_terms` | names of the terms whose sum is the reward |
  | `players` | names of the scripted players |
  | `solved` | mean return from which on the environment counts as solved, or nil |
  | `mask_size` | entries of an action mask, see `c:Sconce.Env.World.action_mask/1`; 0 without masks |
  """
  @type spec :: map

  @typedoc "The name of a native environment, or a world in Elixir: see `Sconce.Env.World`."
  @type name :: atom | {module, term}

  @typedoc "Environments: `count` of them with `rows` rows. `step_us` is the measured time of a step of all of them."
  @type t :: %__MODULE__{
          ref: reference,
          name: atom,
          spec: spec,
          count: pos_integer,
          rows: pos_integer,
          lane: :inline | :worker,
          step_us: float
        }

  @typedoc """
  The results of a step; binaries, or Nx tensors if the inputs were one.

  | key | content |
  |---|---|
  | `observation` | `[rows, observation_size]` f32, after resets in the same step |
  | `reward` | `[rows]` f32 |
  | `terminated` | `[rows]` u8, 1 where the rules ended the episode |
  | `truncated` | `[rows]` u8, 1 where the time limit was reached |
  | `ended` | the rows whose episode ended, ascending |
  | `final_observation` | `[ended, observation_size]` f32, before any reset; nil instead of an empty tensor |
  """
  @type step :: map

  @typedoc "Inputs `[rows, num_labels]`: a binary of 32-bit floats, a list of any nesting, or an Nx tensor."
  @type inputs :: binary | list | struct

  @columns [:observation, :reward, :terminated, :truncated, :final_observation, :ended]

  @doc """
  Returns the names of all environments.

      iex> :cart_pole in Sconce.Env.names()
      true
  """
  @spec names() :: [atom]
  def names do
    {:ok, names} = Native.env_names()
    # The native table is fixed, so this makes few atoms.
    Enum.map(names, &String.to_atom/1)
  end

  @doc """
  Returns what an environment is.

  #{Catalogue.docs(:spec)}

      iex> {:ok, spec} = Sconce.Env.spec(:cart_pole)
      iex> {spec.observation_size, spec.heads, spec.time_limit, spec.solved}
      {4, [{:action, {:categorical, 2}}], 500, 475.0}
      iex> Sconce.Env.spec(:cart_pol)
      ** (ArgumentError) unknown environment :cart_pol, did you mean :cart_pole?
  """
  @spec spec(name, keyword) :: {:ok, spec} | {:error, Error.t()}
  def spec(name, opts \\ []) do
    name!(name)
    options = Options.validate!(opts, Catalogue.schema(:spec))
    describe(name, options)
  end

  # A world that is a module describes itself. It is asked once, because one over a port starts a program for that.
  defp describe(name, options) do
    with {:ok, host} <- Hosting.described(name),
         :ok <- known!(name, options, host),
         options = Keyword.take(options, Keyword.keys(Catalogue.schema(:spec))),
         {:ok, spec} <- name |> Catalogue.to_native(options) |> Native.env_spec(host) do
      {:ok, %{known(spec) | name: name}}
    end
  end

  @doc false
  # Raises `ArgumentError` unless `name` is an environment or a world.
  def name!(name), do: Hosting.world?(name) || Options.known!(name, names(), "environment")

  @doc false
  # Raises `ArgumentError` for an unknown opponent or reward term, and for a weight that is no number. `host` is that of
  # a world that is a module.
  def known!(name, options, host) do
    with {:ok, spec} <- Native.env_spec(Catalogue.to_native(name, []), host),
         do: known_in!(name, options, spec)
  end

  defp known_in!(name, options, spec) do
    opponent = options[:opponent]

    if opponent && spec.players != [],
      do: Options.known!(to_string(opponent), spec.players, "opponent of #{inspect(name)}")

    for {term, weight} <- options[:reward_weights] || [] do
      Options.known!(to_string(term), spec.reward_terms, "reward term of #{inspect(name)}")
      is_number(weight) || Options.argument!("reward weight #{inspect(term)}", weight, "a number")
    end

    :ok
  end

  defp known(spec) do
    heads = for [name, kind] <- spec.heads, do: {String.to_atom(name), Head.from_native(kind)}
    %{spec | heads: heads}
  end

  @doc """
  Creates environments and begins their first episodes.

  Wrong options raise `ArgumentError`. Observations that would take more than 1 GiB are an error of kind
  `:out_of_range`, and an opponent in an environment with one seat is one of kind `:mismatch`.

  #{Catalogue.docs(:new)}

      iex> {:ok, env} = Sconce.Env.new(:duel, count: 8, opponent: :mixer, reward_weights: [touch: 0.5])
      iex> {env.rows, env.spec.observation_size, env.spec.num_labels}
      {8, 19, 2}
      iex> Sconce.Env.new(:cart_pole, cuont: 8)
      ** (ArgumentError) unknown option :cuont, did you mean :count?
  """
  @spec new(atom, keyword) :: {:ok, t} | {:error, Error.t()}
  def new(name, opts \\ []) do
    Options.known!(name, names(), "environment")
    options = Options.validate!(opts, Catalogue.schema(:new))

    with {:ok, spec} <- describe(name, options),
         native = Catalogue.to_native(name, options),
         {:ok, {ref, step_us, inline?}} <- Call.run(&Native.env_new(&1, native)) do
      {:ok,
       %__MODULE__{
         ref: ref,
         name: name,
         spec: spec,
         count: options[:count],
         rows: options[:count] * spec.seats,
         lane: if(inline?, do: :inline, else: :worker),
         step_us: step_us
       }}
    end
  end

  @doc """
  Begins episodes and returns the observations of all rows.

  With options, an episode begins in every environment. With a mask, one begins in the environments whose entry is
  true: booleans, a binary of bytes, or an Nx tensor. An environment with `autoreset: :disabled` needs this after each
  end; without it, the next step is an error of kind `:mismatch`.

  #{Catalogue.docs(:reset)}

      iex> {:ok, env} = Sconce.Env.new(:cart_pole, count: 2, autoreset: :disabled)
      iex> {:ok, first} = Sconce.Env.reset(env, seed: 3)
      iex> {:ok, both} = Sconce.Env.reset(env, [false, true])
      iex> binary_part(both, 0, 16) == binary_part(first, 0, 16)
      true
  """
  @spec reset(t, keyword | [boolean] | binary | struct) ::
          {:ok, binary | struct} | {:error, Error.t()}
  def reset(env, how \\ [])

  def reset(%__MODULE__{} = env, how) do
    {seed, mask} = resetting!(how)

    with {:ok, observation} <- Call.either(&Native.env_reset(env.ref, &1, seed, mask)),
         do: {:ok, column(env, :observation, observation, tensor?(how))}
  end

  def reset(other, _how), do: refuse(other)

  defp resetting!(how) do
    if Keyword.keyword?(how) do
      [seed: seed] = Options.validate!(how, Catalogue.schema(:reset))
      {seed, nil}
    else
      {nil, Inputs.mask(how)}
    end
  end

  @doc """
  Steps all environments.

  An input is the index of a class, or the number itself; numbers are clipped to their range. NaN, an infinity and a
  number that is no class are errors of kind `:out_of_range` that name the input and its row. A wrong length is an error
  of kind `:mismatch`. After an error no environment has moved.

      iex> {:ok, env} = Sconce.Env.new(:mountain_car)
      iex> {:ok, %{reward: <<reward::float-32-little>>}} = Sconce.Env.step(env, [2])
      iex> reward
      -1.0
      iex> {:error, error} = Sconce.Env.step(env, [3])
      iex> Exception.message(error)
      "step: action of row 0: 3 is outside 0..2"
  """
  @spec step(t, inputs) :: {:ok, step} | {:error, Error.t()}
  def step(%__MODULE__{ref: ref} = env, inputs) do
    with {:ok, packed} <- Inputs.pack(inputs),
         {:ok, columns} <- Call.either(&Native.env_step(ref, &1, packed)),
         do: {:ok, stepped(env, columns, tensor?(inputs))}
  end

  def step(other, _inputs), do: refuse(other)

  defp stepped(env, columns, tensor?) do
    for {name, value} <- Enum.zip(@columns, Tuple.to_list(columns)),
        into: %{},
        do: {name, column(env, name, value, tensor?)}
  end

  @doc """
  Copies inputs into the buffer of the next `advance/1`; the errors are those of `step/2`. The moduledoc has an example.

      iex> {:ok, env} = Sconce.Env.new(:cart_pole, count: 2)
      iex> Sconce.Env.put(env, [1, 0])
      :ok
  """
  @spec put(t, inputs) :: :ok | {:error, Error.t()}
  def put(%__MODULE__{ref: ref}, inputs) do
    with {:ok, packed} <- Inputs.pack(inputs),
         {:ok, true} <- Call.either(&Native.env_put(ref, &1, packed)),
         do: :ok
  end

  def put(other, _inputs), do: refuse(other)

  @doc """
  Steps all environments with the inputs of the last `put/2` (at first zeros), and keeps the results for `read/2`.
  Returns the number of rows whose episode ended; the errors are those of `step/2`.

      iex> {:ok, env} = Sconce.Env.new(:cart_pole, count: 3, time_limit: 1)
      iex> Sconce.Env.advance(env)
      {:ok, 3}
  """
  @spec advance(t) :: {:ok, non_neg_integer} | {:error, Error.t()}
  def advance(%__MODULE__{ref: ref}), do: Call.either(&Native.env_advance(ref, &1))
  def advance(other), do: refuse(other)

  @doc """
  Returns a column of the results of the last step or reset, one of the keys of `t:step/0`; binaries without a copy. They
  never change: the next step then writes to a new buffer.

      iex> {:ok, env} = Sconce.Env.new(:cart_pole, count: 2, time_limit: 1)
      iex> {:ok, 2} = Sconce.Env.advance(env)
      iex> {Sconce.Env.read(env, :truncated), Sconce.Env.read(env, :ended)}
      {{:ok, <<1, 1>>}, {:ok, [0, 1]}}
  """
  @spec read(t, atom) :: {:ok, binary | [non_neg_integer]} | {:error, Error.t()}
  def read(%__MODULE__{ref: ref}, column) do
    Options.known!(column, @columns, "column")

    case column do
      :ended -> Call.either(&Native.env_ended(ref, &1))
      binary -> Native.env_read(ref, binary)
    end
  end

  def read(other, _column), do: refuse(other)

  @doc """
  Returns the episodes that have finished since the last call, in the order of environments, then of time: maps of
  `env`, `seat`, `return`, `length` and `terminated` (false for one that the time limit cut).

  Between two calls at most 16,384 episodes of each 1,024 environments are kept.

      iex> {:ok, env} = Sconce.Env.new(:cart_pole, time_limit: 2)
      iex> for _ <- 1..5, do: {:ok, _ended} = Sconce.Env.advance(env)
      iex> {:ok, [episode, _second]} = Sconce.Env.episodes(env)
      iex> episode
      %{env: 0, seat: 0, return: 2.0, length: 2, terminated: false}
      iex> Sconce.Env.episodes(env)
      {:ok, []}
  """
  @spec episodes(t) :: {:ok, [map]} | {:error, Error.t()}
  def episodes(%__MODULE__{ref: ref}) do
    with {:ok, packed} <- Call.either(&Native.env_episodes(ref, &1)),
         do: {:ok, for(<<episode::binary-size(17) <- packed>>, do: episode(episode))}
  end

  def episodes(other), do: refuse(other)

  defp episode(<<env::32-little, seat::32-little, sum::binary-size(4), length::32-little, over>>) do
    %{env: env, seat: seat, return: number(sum), length: length, terminated: over == 1}
  end

  # A huge number as an input may cost an infinite reward.
  defp number(<<number::float-32-little>>), do: number
  defp number(<<0, 0, 0x80, 0x7F>>), do: :infinity
  defp number(<<0, 0, 0x80, 0xFF>>), do: :neg_infinity
  defp number(_bits), do: :nan

  @doc """
  Returns the full state of the environment with index `at`, as a list of numbers; the files in `native/env/src/worlds`
  name them.

      iex> {:ok, env} = Sconce.Env.new(:cart_pole_velocity_less)
      iex> {:ok, state} = Sconce.Env.state(env, 0)
      iex> length(state)
      4
  """
  @spec state(t, non_neg_integer) :: {:ok, [float]} | {:error, Error.t()}
  def state(env, at \\ 0)

  def state(%__MODULE__{ref: ref}, at) when at in 0..0xFFFF_FFFF do
    with {:ok, packed} <- Native.env_state(ref, at),
         do: {:ok, for(<<bits::binary-size(4) <- packed>>, do: number(bits))}
  end

  def state(%__MODULE__{}, at), do: Options.argument!("at", at, "the index of an environment")
  def state(other, _at), do: refuse(other)

  @doc """
  Returns the number of steps of all environments together.

      iex> {:ok, env} = Sconce.Env.new(:cart_pole, count: 3)
      iex> {:ok, _ended} = Sconce.Env.advance(env)
      iex> Sconce.Env.steps(env)
      {:ok, 3}
  """
  @spec steps(t) :: {:ok, non_neg_integer} | {:error, Error.t()}
  def steps(%__MODULE__{ref: ref}), do: Native.env_steps(ref)
  def steps(other), do: refuse(other)

  @doc """
  Plays episodes with a policy or with the policy of a checkpoint, on the native side.

  Each episode has an environment of its own and begins with an empty memory. `name` is an environment; `nil` is that of
  the checkpoint's notes, with the options of the run. A given option overrides the recorded one. A policy that does not
  fit the environment is an error of kind `:mismatch`; a policy without notes needs a `name`.

  Returns a map of `env`, `returns` and `lengths` of the episodes, `mean`, `median`, `min` and `max` of the returns, the
  number `terminated` by the rules, the number of `decisions`, and the time of one as `decision_us`. Where the policy
  plays both seats, the returns are those of the first one.

  #{Catalogue.docs(:play)}

      iex> spec = [embedding: {:vector, 4}, backbone: :mlp, hidden_sizes: [8], heads: [action: {:categorical, 2}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, played} = Sconce.Env.play(policy, :cart_pole, episodes: 3)
      iex> {length(played.returns), played.mean == Enum.sum(played.returns) / 3}
      {3, true}
  """
  @spec play(Policy.t() | Path.t(), name, keyword) :: {:ok, map} | {:error, Error.t()}
  def play(policy, name \\ nil, opts \\ []), do: Playing.play(policy, name, opts)

  @doc """
  Records the first episode that `play/3` plays with these options: `states` (before the first step, and after each
  one), `inputs` and `rewards` of the steps, and whether it was `terminated` by the rules. A state is that of `state/2`.
  The time limit is at most 65,536 steps.

      iex> spec = [embedding: {:vector, 6}, backbone: :mlp, hidden_sizes: [8], heads: [action: {:categorical, 3}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, trace} = Sconce.Env.trace(policy, :acrobot, time_limit: 20)
      iex> {length(trace.states), length(trace.rewards), trace.terminated}
      {21, 20, false}
  """
  @spec trace(Policy.t() | Path.t(), name, keyword) :: {:ok, map} | {:error, Error.t()}
  def trace(policy, name \\ nil, opts \\ []), do: Playing.trace(policy, name, opts)

  @doc """
  Returns the last observation of a row as a grey PNG, its channels side by side. Vectors raise `ArgumentError`.

      iex> {:ok, env} = Sconce.Env.new(:pixel_cart_pole, frame_stack: 2)
      iex> {:ok, <<137, "PNG", _rest::binary>>} = Sconce.Env.png(env)
      iex> {:ok, env} = Sconce.Env.new(:pendulum)
      iex> Sconce.Env.png(env)
      ** (ArgumentError) env: expected observations that are images, got: [3]
  """
  @spec png(t, non_neg_integer) :: {:ok, binary} | {:error, Error.t()}
  def png(env, row \\ 0)

  def png(
        %__MODULE__{spec: %{observation_shape: [_, _, _] = shape, observation_size: size}} = env,
        row
      ) do
    row in 0..(env.rows - 1) ||
      Options.argument!("row", row, "the index of a row, 0 to #{env.rows - 1}")

    with {:ok, seen} <- read(env, :observation),
         do: {:ok, seen |> binary_part(4 * size * row, 4 * size) |> Drawing.Image.png(shape)}
  end

  def png(%__MODULE__{spec: %{observation_shape: shape}}, _row),
    do: Options.argument!("env", shape, "observations that are images")

  def png(other, _row), do: refuse(other)

  defp tensor?(inputs), do: is_struct(inputs) and inputs.__struct__ == Nx.Tensor

  defp column(_env, _name, value, false), do: value
  defp column(_env, :ended, rows, true), do: rows
  # Nx has no empty tensor.
  defp column(_env, _name, "", true), do: nil

  defp column(env, name, bytes, true) when name in [:observation, :final_observation] do
    size = env.spec.observation_size
    Tensor.from_binary(bytes, {:f, 32}, {div(byte_size(bytes), 4 * size), size})
  end

  defp column(env, :reward, bytes, true), do: Tensor.from_binary(bytes, {:f, 32}, {env.rows})
  defp column(env, _flag, bytes, true), do: Tensor.from_binary(bytes, {:u, 8}, {env.rows})

  @spec refuse(term) :: no_return
  defp refuse(other), do: Options.argument!("env", other, "environments of Sconce.Env.new/2")

  defimpl Inspect do
    alias Sconce.Figures

    def inspect(env, _opts) do
      rows = Figures.counted(env.rows, "row")

      "#Sconce.Env<#{env.name} · #{Figures.counted(env.count, "environment")} · #{rows}#{steps(env)}>"
    end

    defp steps(env) do
      case Sconce.Env.steps(env) do
        {:ok, steps} -> " · #{Figures.counted(steps, "step")}"
        {:error, _elsewhere} -> ""
      end
    end
  end
end
