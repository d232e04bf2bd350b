defmodule Sconce.Compat.ExPhil.Catalogue do
  @moduledoc false
  # The options of `Sconce.Compat.ExPhil.Agent` as tables, each in the form of `Sconce.Options`.

  alias Sconce.Options
  alias Sconce.Session.Catalogue

  @sampling Catalogue.schema(:sampling)
  @threshold [type: {:or, [:float, nil]}, min: 0.0, max: 1.0, default: nil]

  @settings [
    deterministic: @sampling[:deterministic],
    temperature: @sampling[:temperature],
    deterministic_buttons: @sampling[:deterministic_buttons],
    press_threshold:
      @threshold ++
        [
          doc:
            "Probability above which a deterministic button is pressed. Both thresholds, or none."
        ],
    release_threshold:
      @threshold ++
        [doc: "Probability at or below which a held deterministic button is released."],
    frame_delay: [
      type: :non_neg_integer,
      default: 0,
      max: 10_000,
      doc: "A figure of `get_config/1`, as in ExPhil; it changes no decision."
    ]
  ]

  @start [
           name: [
             type: :any,
             default: nil,
             doc: "Name of the process, see \"Names\"."
           ],
           policy_path: [
             type: {:or, [:path, nil]},
             default: nil,
             doc: "File of a policy: of ExPhil (`Sconce.Compat`), or of Sconce."
           ],
           policy: [
             type: :any,
             default: nil,
             doc:
               "A `Sconce.Policy`, or ExPhil's map of `params` and `config`, instead of the path. Without both, " <>
                 "`load_policy/2` gives one later."
           ]
         ] ++
           @settings ++
           [
             jump_debounce: [
               type: {:or, [:non_neg_integer, nil]},
               default: nil,
               max: 600,
               doc:
                 "Game frames after a jump or a released jump button in which no jump button is pressed anew in the air."
             ],
             action_repeat: [
               type: :pos_integer,
               default: 1,
               max: 600,
               doc: "Game frames of a decision."
             ],
             style_id: [
               type: {:or, [:non_neg_integer, nil]},
               default: nil,
               max: 65_535,
               doc: "Player whose style is played, the `name_id` of a `Sconce.Frame`; `nil` is 0."
             ],
             style_tag: [
               type: {:or, [:string, nil]},
               default: nil,
               doc: "The same by a tag of `:player_registry`."
             ],
             player_registry: [
               type: {:or, [:path, nil]},
               default: nil,
               doc: "JSON file of ExPhil's player registry, for `:style_tag`."
             ],
             steer_vector: [
               type: :any,
               default: nil,
               doc:
                 "Direction that is removed from the trunk vector: the path of ExPhil's file, or numbers as in the option " <>
                   "`:project_out` of `Sconce.Session`."
             ],
             steer_alpha: [
               type: {:or, [:float, nil]},
               default: nil,
               doc: "Part that is removed: `1.0`, which is also `nil`, or `0.0`."
             ],
             stateful_step: [
               type: :boolean,
               default: false,
               doc:
                 "Whether a GRU or an LSTM carries its state (mode `:carry`) instead of reading its window anew."
             ],
             stateful_resync: [
               type: {:or, [:pos_integer, nil]},
               default: nil,
               max: 1_000_000,
               doc:
                 "With `:stateful_step`, recomputes the state at each k-th frame (`{:resync, k}`)."
             ],
             ablate_prev_action: [
               type: :boolean,
               default: false,
               doc: "Shows zeros instead of the previous action; for files and maps of ExPhil."
             ],
             delay_id: [
               type: :non_neg_integer,
               default: 0,
               max: 10_000,
               doc: "Frame delay that a policy with a delay id reads; other policies have none."
             ],
             uncertainty_log: [
               type: {:or, [:path, nil]},
               default: nil,
               doc:
                 "File to which the confidence of each decision is appended, a line of JSON each."
             ],
             af_convention: [
               type: :any,
               default: :parsed,
               doc: "Only `:parsed`: the age of an action as the state has it."
             ],
             use_incremental: [type: :any, default: nil, doc: "Only `false`, see below."],
             leace_eraser: [type: :any, default: nil, doc: "Only `nil`, see below."],
             embed_config: [type: :any, default: nil, doc: "Only `nil`, see below."],
             stage_ids: [
               type: {:in, [:game, :replay]},
               default: :game,
               doc:
                 "Ids of stages in game states, as in `Sconce.Compat.Melee.frame/3`. Not of ExPhil."
             ],
             session: [
               type: :keyword,
               default: [],
               doc:
                 "More options of `Sconce.Session.open/2`: `:seed`, `:weights`, `:lane` and `:device`. Not of ExPhil."
             ]
           ]

  @ask [
         player_port: [
           type: {:in, [1, 2, 3, 4]},
           default: 1,
           doc: "Port of the own player; the `own_port` of a state goes before it."
         ]
       ] ++
         for(
           name <- [:deterministic, :temperature, :deterministic_buttons],
           do: {name, Keyword.delete(@settings[name], :default)}
         )

  @configure for {name, option} <- Keyword.delete(@settings, :deterministic_buttons),
                 do: {name, Keyword.delete(option, :default)}

  # Options of ExPhil with a value that Sconce cannot follow, and what to do instead.
  @refused [
    use_incremental: [
      [nil, false],
      "the step of ExPhil's gated SSM decides otherwise than its windows, which it was trained on: leave it out"
    ],
    leace_eraser: [
      [nil, false],
      "an eraser is not a projection on one direction: play this policy with ExPhil, or give :steer_vector"
    ],
    embed_config: [[nil], "the file of the policy has its embedding: leave it out"],
    af_convention: [
      [:parsed],
      "only the app knows the conversions: convert action_frame of its states and leave it out"
    ],
    steer_alpha: [
      [nil, 1.0, 0.0],
      "a direction is removed as a whole (1.0) or not at all (0.0)"
    ]
  ]

  @session [:seed, :weights, :lane, :device]

  @schemas %{start: @start, ask: @ask, configure: @configure}

  @doc "A table of options by its name."
  def schema(name), do: Map.fetch!(@schemas, name)

  def docs(name), do: name |> schema() |> Options.docs()

  @doc "The options that are refused by name, as rows of a table."
  def refused do
    Enum.map_join(@refused, "\n", fn {name, [accepted, instead]} ->
      "| `#{inspect(name)}` | #{Enum.map_join(accepted, ", ", &"`#{inspect(&1)}`")} | #{instead} |"
    end)
  end

  @doc "Checks the options of a start, and raises `ArgumentError` that names a wrong one."
  @spec start!(keyword) :: keyword
  def start!(opts) do
    options = Options.validate!(opts, @start)

    for {name, [accepted, instead]} <- @refused,
        options[name] not in accepted,
        do: refuse!(name, options[name], instead)

    for {name, _value} <- options[:session],
        do: Options.known!(name, @session, "option of :session")

    paired!(options)
    if options[:name], do: named!(options[:name])
    options
  end

  @spec refuse!(atom, term, String.t()) :: no_return
  defp refuse!(name, value, instead),
    do: raise(ArgumentError, "option #{inspect(name)}: #{Options.shown(value)}: #{instead}")

  defp paired!(options) do
    if options[:policy] != nil and options[:policy_path] != nil,
      do: refuse!(:policy, options[:policy], "give :policy or :policy_path, not both")

    if options[:style_tag] != nil and options[:style_id] == nil and
         options[:player_registry] == nil,
       do: refuse!(:style_tag, options[:style_tag], "it needs :player_registry")

    if options[:stateful_resync] != nil and not options[:stateful_step],
      do: refuse!(:stateful_resync, options[:stateful_resync], "it needs stateful_step: true")

    unless thresholds?(options),
      do:
        refuse!(
          :press_threshold,
          options[:press_threshold],
          "give both thresholds, or none: ExPhil ignores one alone"
        )
  end

  @doc "Whether both thresholds are given, or none."
  @spec thresholds?(Access.t()) :: boolean
  def thresholds?(options),
    do: is_nil(options[:press_threshold]) == is_nil(options[:release_threshold])

  defp named!(name), do: Options.name!(name)
end
