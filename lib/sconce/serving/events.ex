defmodule Sconce.Serving.Events do
  @distributions [
    queue_wait_us: "microseconds from the call to the batch",
    compute_us: "microseconds of a batch",
    latency_us: "microseconds from the call to the answer",
    batch_size: "requests of a batch"
  ]
  @quantiles [:mean, :p50, :p95, :p99, :p999, :max]

  @catalogue [
    statistics: [
      doc: "Every `:telemetry_ms`: what happened since the last time.",
      measurements:
        [
          requests: "requests that were let in",
          answered: "of them those that were answered",
          late: "those that were over their deadline",
          cancelled: "those whose caller or whose serving ended",
          busy: "requests that a full queue refused",
          panics: "batches that a bug ended",
          swaps: "changes of the weights",
          waiting: "requests that wait at this moment"
        ] ++
          for {name, doc} <- @distributions, quantile <- @quantiles do
            {:"#{name}_#{quantile}", "#{quantile} of the #{doc}, nil without any"}
          end
    ],
    swap: [doc: "Other weights are served.", measurements: []],
    drained: [
      doc: "A `Sconce.Serving.drain/2` has ended: nothing waits any more.",
      measurements: [seconds: "seconds that it took"]
    ],
    stop: [
      doc:
        "`Sconce.Serving.stop/1` ends the serving, or a fault in its process; one that its supervisor shuts down " <>
          "or that is killed says nothing.",
      measurements: []
    ]
  ]

  rows =
    for {name, event} <- @catalogue do
      fields = Enum.map_join(event[:measurements], "; ", fn {key, doc} -> "`#{key}` #{doc}" end)
      "| `:#{name}` | #{event[:doc]} | #{fields} |\n"
    end

  @moduledoc """
  What a `Sconce.Serving` tells where the host has `:telemetry`: the handlers of `[:sconce, :serving, name]`
  get the measurements below, and `serving` (the pid) and `name` as metadata.

  | event | when | measurements |
  |---|---|---|
  #{rows}

  A handler for all of them:

      :telemetry.attach_many("metrics", Sconce.Serving.Events.telemetry_names(), &MyApp.Metrics.handle/4, nil)

  The same as data:

      iex> Enum.map(Sconce.Serving.Events.all(), & &1.telemetry)
      #{inspect(for {name, _event} <- @catalogue, do: [:sconce, :serving, name])}
  """

  @doc "The catalogue: `name`, `telemetry`, `doc`, and what stands in `measurements`."
  @spec all() :: [map]
  def all do
    for {name, event} <- @catalogue do
      %{
        name: name,
        telemetry: [:sconce, :serving, name],
        doc: event[:doc],
        measurements: event[:measurements]
      }
    end
  end

  @doc "The names that `:telemetry` knows them by, for `:telemetry.attach_many/4`."
  @spec telemetry_names() :: [[atom]]
  def telemetry_names, do: Enum.map(all(), & &1.telemetry)

  @doc false
  # Of `Sconce.Serving.stats/1`, its distributions as measurements of one level.
  @spec flat(map) :: map
  def flat(stats) do
    {distributions, counters} = Map.split(stats, Keyword.keys(@distributions))

    for {name, distribution} <- distributions, quantile <- @quantiles, into: counters do
      {:"#{name}_#{quantile}", Map.fetch!(distribution, quantile)}
    end
  end

  @doc false
  @spec execute(atom, map, map) :: :ok
  def execute(name, measurements, metadata) do
    # Not a call that the compiler sees: a host without it is not warned.
    apply(:telemetry, :execute, [[:sconce, :serving, name], measurements, metadata])
  end
end
