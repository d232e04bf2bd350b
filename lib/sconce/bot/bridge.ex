defmodule Sconce.Bot.Bridge do
  @moduledoc """
  What carries frames from a game to a `Sconce.Bot`, and inputs back.

      defmodule MyApp.Bridge do
        @behaviour Sconce.Bot.Bridge

        def connect(opts), do: {:ok, Keyword.fetch!(opts, :game)}

        def next(game, timeout_ms) do
          receive do
            {^game, number, frame} -> {{:frame, {number, frame}}, game}
            {^game, :over} -> {{:over, :finished}, game}
          after
            timeout_ms -> {:none, game}
          end
        end

        def put(game, action) do
          send(game, {:input, action})
          {:ok, game}
        end

        def disconnect(_game), do: :ok
      end

  All functions run in one process, which is linked to the bot and is not the bot's. One frame is answered before the
  next one is read, so a library that writes inputs when it reads the next frame, as libmelee does, sends each input with
  its frame.

  | event | meaning |
  |---|---|
  | `{:frame, state}` | a state of the game, as `Sconce.Bot.step/3` takes it; a state of Melee may also be of a menu |
  | `{:menu, state}` | a state outside of a game |
  | `{:over, reason}` | the game has ended |
  | `:none` | nothing has come for `timeout_ms` |
  | `{:closed, reason}` | the connection is gone; the bot disconnects and connects again |

  A bridge that raises or exits is closed as well.
  """

  alias Sconce.Action

  @typedoc "The state of a bridge."
  @type t :: term
  @type event ::
          {:frame, term} | {:menu, term} | {:over, term} | :none | {:closed, term}

  @doc """
  Returns the options for `connect/1`: those of the bridge, and those that it takes from the bot's, such as `:port`. A bridge
  without this function gets its own alone.
  """
  @callback options(keyword, bot :: keyword) :: keyword
  @optional_callbacks options: 2

  @doc "Connects to the game."
  @callback connect(keyword) :: {:ok, t} | {:error, term}

  @doc "Waits for the next event, at most about `timeout_ms`; a bot that stops waits as long, and 2 s at most."
  @callback next(t, timeout_ms :: pos_integer) :: {event, t}

  @doc "Sends an input: a `Sconce.Action`, or what the `:menu` function of the bot returned."
  @callback put(t, Action.t() | term) :: {:ok, t} | {:error, term}

  @doc "Disconnects. If the bot stops amid a game, the neutral input has been sent before."
  @callback disconnect(t) :: term
end
