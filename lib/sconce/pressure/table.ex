defmodule Sconce.Pressure.Table do
  @moduledoc false
  # The table of `Sconce.Pressure` as data: the answers with their options, and the rows.

  alias Sconce.Options

  @answers [
    smaller: [
      doc: "a smaller size: half of it, or the largest one that went well",
      options: [floor: [type: :pos_integer, default: 1, doc: "Smallest size."]]
    ],
    retry: [
      doc: "the same again, after a wait that doubles with each try",
      options: [
        times: [type: {:or, [:non_neg_integer, :infinity]}, default: 1, doc: "Tries at most."],
        backoff_ms: [
          type: :non_neg_integer,
          max: 3_600_000,
          default: 500,
          doc: "Milliseconds before the first try."
        ],
        most_ms: [
          type: :non_neg_integer,
          max: 86_400_000,
          default: 30_000,
          doc: "Longest wait in milliseconds."
        ]
      ]
    ],
    cold: [doc: "the same in the cold tier of an app, once; only in rows of the app", options: []],
    other_device: [doc: "the same on `:other_device`, once; left out without one", options: []],
    skip: [doc: "this one unit of work is dropped, and the next one goes on", options: []],
    stop: [doc: "the end, with what was saved", options: []]
  ]

  # `fixed` rows describe what other code does by itself; options cannot replace them.
  @rows [
    %{
      failed: :memory,
      where: :train,
      answers: [
        smaller: [],
        retry: [times: 1, backoff_ms: 1_000],
        other_device: [],
        stop: []
      ],
      by:
        "`:smaller` by the native trainer within the step, see `micro_batch`; the rest by the process of the run, " <>
          "from its last saved state"
    },
    %{
      failed: :deadline,
      where: :train,
      answers: [retry: [times: 2], stop: []],
      by:
        "the process of the run, from its last saved state: a late batch of the loader, a late step of a module"
    },
    %{
      failed: :device,
      where: :train,
      answers: [retry: [times: 2], other_device: [], stop: []],
      by: "the process of the run, from its last saved state"
    },
    %{
      failed: :memory,
      where: :serve,
      answers: [retry: [times: 1, backoff_ms: 0], other_device: [], stop: []],
      by:
        "whatever puts a policy on a device; another device only at the start of a `Sconce.Serving`"
    },
    %{
      failed: :device,
      where: :serve,
      answers: [other_device: [], stop: []],
      by: "`Sconce.Serving`, at its start"
    },
    %{
      failed: :deadline,
      where: :serve,
      answers: [skip: []],
      by:
        "the native serving: the request ends with an error of kind `:deadline`, and its session is unchanged",
      fixed: true
    },
    %{
      failed: :deadline,
      where: :play,
      answers: [skip: []],
      by: "`Sconce.Bot`: the neutral input goes out",
      fixed: true
    },
    %{
      failed: :deadline,
      where: :network,
      answers: [retry: [times: :infinity], stop: []],
      by: "`Sconce.Rollout`, whose segments wait for a learner that does not answer"
    },
    %{
      failed: :memory,
      where: :network,
      answers: [skip: []],
      by:
        "the queue of a `Sconce.Rollout`: new segments displace the oldest ones; `Sconce.Evolve.Island`: no " <>
          "migrants for an island that has not stored the earlier ones",
      fixed: true
    },
    %{
      failed: :memory,
      where: :store,
      answers: [retry: [times: 1, backoff_ms: 0], stop: []],
      by:
        "`Sconce.Store`: reads and puts, after the garbage of the caller is collected, which may hold blocks"
    }
  ]

  @failures ~w(memory deadline device)a
  @places ~w(train play serve store network)a

  @doc "The kinds of failure."
  def failures, do: @failures

  @doc "The places where something fails."
  def places, do: @places

  @doc "The names of the answers."
  def answers, do: Keyword.keys(@answers)

  @doc "All rows, their answers with all options."
  @spec rows() :: [map]
  def rows do
    for row <- @rows do
      answers = for {name, options} <- row.answers, do: {name, whole!(name, options)}
      row |> Map.merge(%{answers: answers}) |> Map.put_new(:fixed, false)
    end
  end

  @doc "The answers of a place by failure, with rows of the user in place of those of the table."
  @spec answers!(atom, keyword | map) :: %{atom => keyword}
  def answers!(where, own) do
    table = for %{where: ^where} = row <- rows(), into: %{}, do: {row.failed, row.answers}

    for {key, answers} <- pairs!(own), reduce: table do
      table -> replaced(table, where, checked!(key), answers!(answers))
    end
  end

  defp pairs!(own) when is_map(own) and not is_struct(own), do: Map.to_list(own)

  defp pairs!(own) do
    proper? = is_list(own) and length_of(own) != nil and Enum.all?(own, &match?({_, _}, &1))
    proper? || refuse!(own, "a map of {failed, where} to answers")
    own
  end

  # An improper list has no length.
  defp length_of(list) do
    length(list)
  rescue
    ArgumentError -> nil
  end

  defp checked!({failed, where} = key) when failed in @failures and where in @places do
    row = Enum.find(rows(), &(&1.failed == failed and &1.where == where))
    fixed? = row != nil and row.fixed
    fixed? && refuse!(key, "a row that can be replaced; this one is #{row.by}")
    key
  end

  defp checked!(key) do
    refuse!(
      key,
      "{failed, where} with one of #{inspect(@failures)} and one of #{inspect(@places)}"
    )
  end

  defp answers!(answers) do
    (is_list(answers) and (length_of(answers) || 0) > 0) || refuse!(answers, "a list of answers")

    for answer <- answers do
      case answer do
        {name, options} -> {known!(name), whole!(name, options)}
        name -> {known!(name), whole!(name, [])}
      end
    end
  end

  defp known!(name) do
    Options.known!(name, Keyword.keys(@answers), "answer of option :rows")
    name
  end

  defp whole!(name, options), do: Options.validate!(options, @answers[name][:options])

  # Rows of other places are checked and left out.
  defp replaced(table, where, {failed, where}, answers), do: Map.put(table, failed, answers)
  defp replaced(table, _where, _key, _answers), do: table

  @spec refuse!(term, String.t()) :: no_return
  defp refuse!(value, expected), do: Options.argument!("option :rows", value, expected)

  @doc "The rows as a table in Markdown."
  @spec docs() :: String.t()
  def docs do
    Enum.map_join(rows(), "\n", fn row ->
      answers = Enum.map_join(row.answers, ", ", &answer/1)
      "| `#{inspect(row.failed)}` | `#{inspect(row.where)}` | #{answers} | #{row.by} |"
    end)
  end

  defp answer({:smaller, options}), do: "`:smaller` to #{options[:floor]}"
  defp answer({:retry, options}), do: "`:retry` #{times(options[:times])}"
  defp answer({name, _options}), do: "`#{inspect(name)}`"

  defp times(:infinity), do: "without end"
  defp times(1), do: "once"
  defp times(n), do: "#{n} times"

  @doc "The answers with their options as a list in Markdown."
  @spec answer_docs() :: String.t()
  def answer_docs do
    Enum.map_join(@answers, "\n", fn {name, answer} ->
      options =
        Enum.map_join(answer[:options], fn {option, spec} ->
          doc = String.trim_trailing(spec[:doc], ".")
          "; `#{inspect(option)}` (#{inspect(spec[:default])}): #{String.downcase(doc)}"
        end)

      "| `#{inspect(name)}` | #{answer[:doc]}#{options} |"
    end)
  end
end
