defmodule Sconce.Env.Batch do
  @moduledoc """
  The behaviour of a world that steps many environments in one call, in binaries: for example over a port, or with Nx.
  `Sconce.Env.Gymnasium` is one; a world that steps one environment at a time implements `Sconce.Env.World`.

  Numbers are 32-bit floats, little-endian, row-major. Every result is a binary or an iolist. The functions run in the
  process that has the environments, so they may own ports. Errors are those of `Sconce.Env.World`.
  """

  alias Sconce.Env.World

  @typedoc "The `options` of `{module, options}`, the index of the `first` environment, and their number `count`."
  @type opening :: %{options: term, first: non_neg_integer, count: pos_integer}

  @typedoc "An episode that begins in the environment with index `at` of this batch; see `t:Sconce.Env.World.begin/0`."
  @type begin :: %{
          at: non_neg_integer,
          env: non_neg_integer,
          episode: non_neg_integer,
          seed: non_neg_integer
        }

  @doc "Describes the world with these options."
  @callback spec(options :: term) :: World.spec()

  @doc "Opens environments."
  @callback open(opening) :: state :: term

  @doc "Begins episodes. Returns their first observations `[begins, seats, observation_size]`."
  @callback reset([begin], state :: term) :: {iodata, state :: term}

  @doc """
  Steps the environments whose byte of `active` is 1. `inputs` is `[count, seats, numbers]`: classes as numbers, and other
  parts as they are. Returns observations `[count, seats, observation_size]`, rewards `[count, seats, terms]`, and a byte
  for each environment:
  0 while it runs, 1 for an end by the rules, 2 for an end by a limit, 3 for both. Entries of others are ignored.
  """
  @callback step(inputs :: binary, active :: binary, state :: term) ::
              {observations :: iodata, rewards :: iodata, flags :: iodata, state :: term}

  @doc """
  Returns the action masks of all environments, after a reset and after a step: `[count, seats, entries]`, a byte for each class
  and each flag of an input in the order of its parts, 1 where it is allowed and 0 where it is not. Entries of environments
  whose episode has ended are ignored. See `c:Sconce.Env.World.action_mask/1`.
  """
  @callback action_masks(state :: term) :: iodata

  @doc "Returns the state of each environment as a binary, empty for one that cannot be saved."
  @callback save(state :: term) :: [binary]

  @doc "Restores states; returns whether each environment has taken its own. The others begin their next episode."
  @callback restore([binary], state :: term) :: {[boolean], state :: term}

  @doc "Closes the environments."
  @callback close(state :: term) :: term

  @optional_callbacks action_masks: 1, save: 1, restore: 2, close: 1
end
