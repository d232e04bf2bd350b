defmodule Sconce.Env do
  @moduledoc """
  Environments: worlds that answer inputs with observations and rewards.

  | name | input | observation |
  |---|---|---|
  | `:cart_pole` | push left or right | position, velocity, angle and angular velocity of a pole on a cart (CartPole-v1) |
  | `:cart_pole_velocity_less` | push left or right | position and angle: a policy needs memory |
  | `:mountain_car` | push left, not at all, or right | position and velocity of a car in a valley (MountainCar-v0) |
  | `:mountain_car_continuous` | a force | as above (MountainCarContinuous-v0) |
  | `:acrobot` | a torque of -1, 0 or 1 | sines, cosines and velocities of two links (Acrobot-v1) |
  | `:pendulum` | a torque | cosine, sine and velocity of a pendulum (Pendulum-v1) |

  Physics, rewards and limits are Gymnasium's. `Sconce.PPO` learns in them.
  """

  alias Sconce.{Error, Native, Options}
  alias Sconce.Policy.Head

  @options [
    action_repeat: [
      type: :pos_integer,
      default: 1,
      max: 1000,
      doc: "Steps of the environment with one action."
    ],
    frame_stack: [
      type: :pos_integer,
      default: 1,
      max: 256,
      doc: "Last observations in one, the present one included."
    ],
    opponent: [
      type: {:or, [:string, :atom]},
      default: nil,
      doc: "Scripted player of the second seat, for environments with two."
    ],
    time_limit: [
      type: {:or, [:pos_integer, nil]},
      default: nil,
      max: 16_777_216,
      doc: "Steps after which an episode is cut; `nil` is the environment's own limit."
    ]
  ]

  @typedoc """
  What an environment is.

  | key | content |
  |---|---|
  | `name` | its name |
  | `observation_size` | numbers in an observation |
  | `heads` | `{name, kind}` of each part of an input, for the heads of a `Sconce.Policy.Spec` |
  | `seats` | players that are not scripted |
  | `time_limit` | steps after which an episode is cut |
  | `reward_terms` | names of the terms whose sum is the reward |
  | `players` | names of the scripted players |
  | `solved` | mean return from which on the environment counts as solved, or nil |
  """
  @type spec :: map

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

  #{Options.docs(@options)}

      iex> {:ok, spec} = Sconce.Env.spec(:cart_pole)
      iex> {spec.observation_size, spec.heads, spec.time_limit, spec.solved}
      {4, [{:action, {:categorical, 2}}], 500, 475.0}
      iex> Sconce.Env.spec(:cart_pol)
      ** (ArgumentError) unknown environment :cart_pol, did you mean :cart_pole?
  """
  @spec spec(atom, keyword) :: {:ok, spec} | {:error, Error.t()}
  def spec(name, opts \\ []) do
    name!(name)
    options = opts |> Options.validate!(@options) |> Map.new()

    options =
      Map.merge(options, %{env: name, opponent: options.opponent && to_string(options.opponent)})

    with {:ok, spec} <- Native.env_spec(options), do: {:ok, known(spec)}
  end

  @doc false
  # Raises `ArgumentError` unless `name` is an environment.
  def name!(name), do: Options.known!(name, names(), "environment")

  defp known(spec) do
    heads = for [name, kind] <- spec.heads, do: {String.to_atom(name), Head.from_native(kind)}
    %{spec | name: String.to_atom(spec.name), heads: heads}
  end
end
