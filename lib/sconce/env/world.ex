defmodule Sconce.Env.World do
  @moduledoc """
  The behaviour of a world that is written in Elixir: the rules of one environment, without processes of their own.

      defmodule Catch do
        @behaviour Sconce.Env.World

        @impl true
        def spec(_options), do: %{observation_size: 3, input: [move: {:choice, 3}], time_limit: 9}

        @impl true
        def reset(%{seed: seed}) do
          {column, _} = :rand.uniform_s(9, :rand.seed_s(:exsss, seed))
          state = %{fruit: column, height: 8, basket: 5}
          {seen(state), state}
        end

        @impl true
        def step(%{move: move}, state) do
          state = %{state | height: state.height - 1, basket: state.basket + move - 1}
          caught = if state.fruit == state.basket, do: 1.0, else: -1.0

          if state.height == 0,
            do: {seen(state), caught, :terminated, state},
            else: {seen(state), 0.0, :running, state}
        end

        defp seen(state), do: [state.fruit / 9, state.height / 8, state.basket / 9]
      end

      {:ok, run} = Sconce.PPO.start_link(env: Catch, out: "catch", steps: 100_000)

  A world is named by its module, or by `{module, options}`. `Sconce.PPO` learns in it, and `Sconce.Env.play/3` evaluates a
  policy. `:processes` processes step the environments, and results do not depend on their number. Limits, repeated
  actions, stacked observations and weights of reward terms work as in native environments.

  A world in which not every action is allowed in every state implements `c:action_mask/1`. The policy then never chooses
  an action that is not allowed, neither while it learns nor while it plays:

      @impl true
      def action_mask(state), do: %{move: [state.basket > 1, true, state.basket < 9]}

  A world of two players has `seats: 2`. Whatever is of one player is then a list with an entry for each seat: the
  observation of `c:reset/1`, the inputs, observations and rewards of `c:step/2`, and the masks of `c:action_mask/1`. Two
  players who move in turn both take each step; the mask of the one who waits allows a single class, of which the world
  takes no notice:

      def spec(_options), do: %{observation_size: 2, input: [take: {:choice, 4}], seats: 2}

      def step([first, second], %{turn: turn, left: left}) do
        left = left - Enum.at([first, second], turn).take
        rewards = if left == 0, do: List.replace_at([-1, -1], turn, 1), else: [0, 0]
        over = if left == 0, do: :terminated, else: :running
        state = %{turn: 1 - turn, left: left}
        {seen(state), rewards, over, state}
      end

      def action_mask(state),
        do: for(seat <- 0..1, do: %{take: if(seat == state.turn, do: takes(state), else: waits())})

  In `Sconce.PPO` one policy plays both seats, or one of them against `:opponents`: policies of files, and past selves.
  `Sconce.League` plays matches. `:opponent` is for native worlds with scripted players.

  | a world that | ends the run with an error of kind |
  |---|---|
  | raises, throws or exits, or gives an observation of another size | `:panic` |
  | gives a number that is not finite | `:non_finite` |
  | gives a mask of another size, with an unknown name, or that allows nothing | `:panic` |
  | takes longer than `:step_timeout_ms` | `:deadline` |
  | kills its process | `:unavailable` |

  The last saved state of the run stays. A run that resumes goes on with the state of each environment. A state that holds
  processes, ports, references or functions cannot be saved: that environment begins its next episode.

  A module that steps many environments in one call, for example over a port, implements `Sconce.Env.Batch` instead.
  """

  alias Sconce.{Game, Options}
  alias Sconce.Game.Declaration
  alias Sconce.Policy.Spec

  @typedoc """
  A description.

  | key | content |
  |---|---|
  | `observation_size` | numbers in an observation, up to 65,536 |
  | `input` | parts of an input by name, with types as in `Sconce.Game` |
  | `time_limit` | steps after which an episode is cut; none without it |
  | `reward_terms` | names of the terms of a reward; without it a reward is one number |
  | `solved` | mean return from which on the world counts as solved |
  | `masks` | whether there are action masks; by default whether the module has a function for them |
  | `seats` | players, 1 (by default) or 2 |
  """
  @type spec :: map

  @typedoc "An observation: a list of numbers, or a binary of 32-bit floats, little-endian."
  @type observation :: [number] | binary

  @typedoc "What the only seat has, or a list with an entry for each of two seats."
  @type by_seat(of) :: of | [of]

  @typedoc """
  The start of an episode: the `options` of `{module, options}`, the `seed` of the episode, the index `env` of the
  environment, and the number `episode`. The seed depends on that of the run, on `env` and on `episode` alone.
  """
  @type begin :: %{
          options: term,
          seed: non_neg_integer,
          env: non_neg_integer,
          episode: non_neg_integer
        }

  @typedoc "An input by part: a class, a number, a list of numbers, or a map of flags to booleans."
  @type input :: %{atom => integer | float | [float] | %{atom => boolean}}

  @doc "Describes the world with these options."
  @callback spec(options :: term) :: spec

  @doc "Begins an episode."
  @callback reset(begin) :: {by_seat(observation), state :: term}

  @doc """
  Takes a step. The reward is a number, or a map of the reward terms. An episode ends by the rules of the world
  (`:terminated`) or by a limit (`:truncated`).
  """
  @callback step(by_seat(input), state :: term) ::
              {by_seat(observation), reward :: by_seat(number | %{atom => number}),
               :running | :terminated | :truncated, state :: term}

  @typedoc """
  Which actions are allowed: a map of parts of the input. Of a `:choice` or an `:axis` it has a boolean for each class, of
  which one at least is true; of `:flags` a map of names to booleans, or a boolean for each name. Parts and flags that are
  missing are allowed. A list instead of the map has all booleans, one part after the other. Numbers have no mask.
  """
  @type mask :: %{atom => [boolean] | %{atom => boolean}} | [boolean]

  @doc """
  Returns which actions are allowed in a state: at the start of an episode, and after each step that does not end it.

  The likelihood of an action is then that among the allowed ones, as in MaskablePPO. A world with masks cannot be run
  with `:action_repeat`, because an action may not be allowed in its repeats.
  """
  @callback action_mask(state :: term) :: by_seat(mask)

  @optional_callbacks action_mask: 1

  @schema [
    observation_size: [type: {:in, 1..65_536}, required: true],
    input: [type: :keyword, required: true],
    time_limit: [type: {:or, [nil, {:in, 1..16_777_216}]}, default: nil],
    reward_terms: [type: {:or, [nil, {:list, :atom}]}, default: nil],
    solved: [type: {:or, [nil, :float]}, default: nil],
    masks: [type: {:or, [nil, :boolean]}, default: nil],
    seats: [type: {:in, 1..2}, default: 1]
  ]

  @doc false
  # Returns the checked description of a module, with the parts of an input as those of a game.
  @spec described!(module, term) :: map
  def described!(module, options) do
    given = module.spec(options)
    is_map(given) || Options.argument!("spec of #{inspect(module)}", given, "a map")
    spec = given |> Map.to_list() |> Options.validate!(@schema) |> Map.new()
    fields = [observation: [type: {:vector, spec.observation_size}]]
    game = Game.new!(name: :world, fields: fields, input: spec.input)
    native = Declaration.to_native(game).input
    if native == [], do: Options.argument!("input of #{inspect(module)}", [], "at least one part")
    masks? = masks?(module, spec.masks)
    Map.merge(spec, %{parts: game.input, native: native, masks: masks?})
  end

  defp masks?(module, given) do
    name = if function_exported?(module, :step, 3), do: :action_masks, else: :action_mask
    exported? = function_exported?(module, name, 1)

    if given == true and not exported? do
      raise ArgumentError, "masks of #{inspect(module)}: expected a function #{name}/1"
    end

    if given == nil, do: exported?, else: given
  end

  @doc false
  # Converts a description to its native form.
  @spec to_native(map, String.t()) :: map
  def to_native(spec, name) do
    %{
      name: name,
      observation_size: spec.observation_size,
      inputs: spec.native,
      time_limit: spec.time_limit || 16_777_216,
      reward_terms: Enum.map(spec.reward_terms || [:reward], &Spec.text/1),
      solved: spec.solved,
      masks: spec.masks,
      seats: spec.seats
    }
  end
end
