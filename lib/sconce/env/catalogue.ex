defmodule Sconce.Env.Catalogue do
  @moduledoc false
  # The options of `Sconce.Env`.

  alias Sconce.Env.Hosting
  alias Sconce.Options

  @seed [type: :non_neg_integer, max: 2 ** 64 - 1]

  @hosting [
    processes: [
      type: {:or, [nil, :pos_integer]},
      default: nil,
      max: 1024,
      doc: "Processes that step the environments of a module; `nil` is one for each scheduler."
    ],
    step_timeout_ms: [
      type: :pos_integer,
      default: 30_000,
      max: 3_600_000,
      doc: "Milliseconds for which a step waits for a module."
    ]
  ]
  @world [
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
      type: {:or, [nil, :string, :atom]},
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
  @weights [
    reward_weights: [
      type: :keyword,
      default: [],
      doc: "Weights of the reward terms by name; 1 for a term without one."
    ]
  ]
  @new [
         count: [
           type: :pos_integer,
           default: 1,
           max: 1_048_576,
           doc: "Environments that step together."
         ],
         seed:
           @seed ++ [default: 0, doc: "Seed; environment `i` depends on the seed and `i` alone."],
         autoreset: [
           type: {:in, [:same_step, :next_step, :disabled]},
           default: :same_step,
           doc:
             "When an episode begins after the end of one: in the `:same_step`, in the `:next_step`, which ignores " <>
               "its input, or by `reset/2` only."
         ]
       ] ++ @world ++ @weights
  # Without a value, that of the policy's notes counts.
  @play [
          episodes: [
            type: :pos_integer,
            default: 100,
            max: 65_536,
            doc: "Episodes, each in an environment of its own."
          ],
          seed: @seed ++ [default: 0, doc: "Seed of the starts and of sampled actions."],
          deterministic: [
            type: :boolean,
            default: true,
            doc: "Whether the policy takes the likeliest action instead of a sampled one."
          ]
        ] ++
          @hosting ++
          for({name, spec} <- @world ++ @weights, do: {name, Keyword.delete(spec, :default)})

  @reset [
    seed: [
      type: {:or, [:non_neg_integer, nil]},
      max: 2 ** 64 - 1,
      default: nil,
      doc: "Begins the first episodes of this seed; `nil` begins the next ones."
    ]
  ]

  @doc "Returns a schema: of `:new`, `:spec`, `:play` or `:reset`."
  def schema(:new), do: @new
  def schema(:spec), do: @world ++ @weights
  def schema(:play), do: @play
  def schema(:reset), do: @reset

  @doc "Returns the schema as Markdown."
  def docs(of), do: of |> schema() |> Options.docs()

  @doc "Converts options to those of the native side. Absent options stay absent."
  def to_native(name, options) do
    options
    |> Map.new()
    |> Map.put(:env, if(Hosting.world?(name), do: Hosting.text(name), else: name))
    |> Map.replace_lazy(:opponent, &(&1 && to_string(&1)))
    |> Map.replace_lazy(
      :reward_weights,
      &for({term, weight} <- &1, do: [to_string(term), weight])
    )
  end
end
