defmodule Sconce.Env.Billiards do
  alias Sconce.{Env, Error, Native, Options}
  alias Sconce.Native.Call
  alias __MODULE__.Picture

  @shot [
    angle: [
      type: :float,
      default: 0.0,
      min: -1,
      max: 1,
      doc: "Direction in half turns: 0 is along the table, 0.5 across it."
    ],
    power: [
      type: :float,
      default: 0.5,
      min: 0,
      max: 1,
      doc: "Speed of the cue ball; 1 is 10 m/s."
    ],
    top: [type: :float, default: 0.0, min: -1, max: 1, doc: "Top spin, negative for back spin."],
    side: [
      type: :float,
      default: 0.0,
      min: -1,
      max: 1,
      doc: "Side spin, positive for counterclockwise from above."
    ],
    interval_ms: [
      type: :pos_integer,
      default: 20,
      max: 3_600_000,
      doc: "Simulated milliseconds between two frames, at least."
    ]
  ]

  @moduledoc """
  Billiards: eight balls, six pockets, and shots that are worth what falls. A step of `Sconce.Env.new(:billiards)` is a
  shot, and an episode has three.

  The table is 2.54 m by 1.27 m. The cue ball has a radius of 0.028 m, the balls 1 to 7 have one of 0.026 m. The origin
  is the middle of the table and x runs along its long side. The balls start near the spots of a snooker table, each
  coordinate changed by up to 0.02 m. The target is the ball with the lowest number on the table.

  | input | range | meaning |
  |---|---|---|
  | `angle` | -1..1 | direction in half turns |
  | `power` | 0..1 | speed of the cue ball, 1 is 10 m/s |
  | `top`, `side` | -1..1 | spin as a share of the spin that a cue can give; both together are at most 1 |

  | reward term | value |
  |---|---|
  | `target` | 20 if the target falls |
  | `other` | 10 for each other ball that falls |
  | `scratch` | -15 if the cue ball falls |
  | `miss` | -3 if none of the balls 1 to 7 falls |
  | `centre` | up to 5, the nearer the cue ball rests to the middle; 0 after a scratch |

  | numbers of an observation | content |
  |---|---|
  | 0, 1 | x and y of the cue ball, in shares of half of the table |
  | 2 to 22 | x, y, and 1 if it is on the table, of the balls 1 to 7 |
  | 23 | the angle of a shot without spin that pots the target in the pocket with the straightest shot |
  | 24 | cosine of the angle between that shot and the way of the target |
  | 25 | share of the shots taken |
  | 26 | share of the balls 1 to 7 that moved in the episode |
  | 27 | share of the balls 1 to 7 that fell in the episode |
  | 28 | 1 if the cue ball fell in the last shot |

  The final observation of an episode therefore has the measures of an archive: where the cue ball rests (0, 1) and how
  many balls moved (26).

  ## Physics

  Balls slide, then roll, then rest, each with a closed form (coefficients of friction 0.2 and 0.01). Substeps are so
  short that no ball moves further than half of a radius, and the time of each collision is solved for within the substep.
  Two balls exchange impulse along the line of their centres with a restitution of 0.89; all balls have the same mass.
  Cushions have a restitution of 0.75 and turn side spin into motion. A ball falls when its centre is within 0.05 m of a
  pocket. A shot ends when all balls rest, or after 30 s. A cue ball that fell returns to a free place near its spot.

  `:billiards_published` has published physics instead, to compare with published results only: 200 explicit Euler steps
  of 1/60 s, up to 50 m/s, no spin. Its balls pass through each other.
  """

  @enforce_keys [:frames, :events, :state, :terms]
  defstruct @enforce_keys

  @typedoc """
  A shot.

  | key | content |
  |---|---|
  | `frames` | maps of `time` in seconds and `balls`: `{x, y}` in metres for each ball, or nil for one that fell |
  | `events` | maps of `time`, `kind` (`:balls`, `:cushion` or `:pocket`), `ball`, and `other` for two balls, else nil |
  | `state` | the state after the shot, from which the next one can start |
  | `terms` | the reward terms by name |
  """
  @type t :: %__MODULE__{
          frames: [%{time: float, balls: [{float, float} | nil]}],
          events: [
            %{
              time: float,
              kind: :balls | :cushion | :pocket,
              ball: 0..7,
              other: 0..7 | nil
            }
          ],
          state: [float],
          terms: %{atom => float}
        }

  @terms [:target, :other, :scratch, :miss, :centre]
  # A coordinate from which on a ball has fallen.
  @fallen 64

  @doc """
  Simulates a shot and returns its trace: positions over time, and events.

  The table is in the start state of a seed, or in a state: that of `Sconce.Env.state/2`, or of a shot before. The
  result is that of a step of the environment, bit for bit. A state of another size is an error of kind `:mismatch`.

  #{Options.docs(@shot)}

      iex> {:ok, shot} = Sconce.Env.Billiards.shot(1, angle: -0.11, power: 0.3)
      iex> {hd(shot.frames).time, length(hd(shot.frames).balls), length(shot.state)}
      {0.0, 8, 33}
      iex> {:ok, next} = Sconce.Env.Billiards.shot(shot.state, power: 0.2, top: -0.5)
      iex> map_size(next.terms)
      5
  """
  @spec shot(non_neg_integer | [number], keyword) :: {:ok, t} | {:error, Error.t()}
  def shot(from, opts \\ []) do
    options = Options.validate!(opts, @shot)
    input = Keyword.values(Keyword.take(options, [:angle, :power, :top, :side]))
    input = for number <- input, do: number / 1

    with {:ok, state} <- state(from),
         native = %{state: state, input: input, interval_s: options[:interval_ms] / 1000},
         {:ok, shot} <- Call.run(&Native.env_shot(&1, native)),
         do: {:ok, traced(shot)}
  end

  defp state(seed) when is_integer(seed) and seed in 0..0xFFFF_FFFF_FFFF_FFFF do
    with {:ok, env} <- Env.new(:billiards, seed: seed), do: Env.state(env)
  end

  defp state([_ | _] = state) do
    (not List.improper?(state) and Enum.all?(state, &(is_number(&1) and abs(&1) <= 8192))) ||
      refuse(state)

    {:ok, for(number <- state, do: number / 1)}
  end

  defp state(other), do: refuse(other)

  @spec refuse(term) :: no_return
  defp refuse(other),
    do: Options.argument!("from", other, "a seed, or a state as a list of numbers up to 8192")

  defp traced(shot) do
    %__MODULE__{
      frames: for([time | places] <- shot.frames, do: %{time: time, balls: balls(places)}),
      events: for(event <- shot.events, do: event(event)),
      state: shot.state,
      terms: @terms |> Enum.zip(shot.terms) |> Map.new()
    }
  end

  defp balls(places) do
    for [x, y] <- Enum.chunk_every(places, 2), do: if(x < @fallen, do: {x, y})
  end

  defp event(%{kind: kind, ball: ball, other: other, time: time}) do
    kind = Map.fetch!(%{"balls" => :balls, "cushion" => :cushion, "pocket" => :pocket}, kind)
    %{time: time, kind: kind, ball: ball, other: if(kind == :balls, do: other)}
  end

  @doc """
  Draws a shot as the text of an SVG file: the table with its pockets, the balls before (outlines) and after it, and
  their paths.

      iex> {:ok, shot} = Sconce.Env.Billiards.shot(1, power: 0.2)
      iex> Sconce.Env.Billiards.svg(shot) =~ "<polyline"
      true
  """
  @spec svg(t) :: String.t()
  def svg(%__MODULE__{frames: [_ | _], events: events, terms: %{}} = shot) when is_list(events),
    do: Picture.svg(shot)

  def svg(other), do: Options.argument!("shot", other, "a shot of Sconce.Env.Billiards.shot/2")

  defimpl Inspect do
    alias Sconce.Figures

    def inspect(%{frames: [_ | _], events: events, terms: %{}} = shot, _opts)
        when is_list(events) do
      seconds = Float.round(List.last(shot.frames).time / 1, 1)
      reward = Float.round(Enum.sum(Map.values(shot.terms)) / 1, 1)
      events = Figures.counted(length(shot.events), "event")
      "#Sconce.Env.Billiards<#{seconds} s · #{events} · reward #{reward}>"
    end

    def inspect(_other, _opts), do: "#Sconce.Env.Billiards<>"
  end
end
