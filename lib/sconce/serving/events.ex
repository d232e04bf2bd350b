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
      doc: "Every `:telemetry_ms`, with the counts since the last event.",
      measurements:
        [
          requests: "accepted requests",
          answered: "requests with an answer",
          late: "requests that missed their deadline",
          cancelled: "requests whose caller or serving ended",
          busy: "requests that a full queue refused",
          panics: "batches that a bug ended",
          swaps: "replacements of the weights",
          max_batch: "requests of a batch at most now",
          waiting: "requests in the queue now"
        ] ++
          for {name, doc} <- @distributions, quantile <- @quantiles do
            {:"#{name}_#{quantile}", "#{quantile} of the #{doc}, nil without values"}
          end
    ],
    swap: [doc: "The weights were replaced.", measurements: []],
    drained: [
      doc: "A `Sconce.Serving.drain/2` has ended: no request is left.",
      measurements: [seconds: "duration in seconds"]
    ],
    stop: [
      doc:
        "The serving ends, by `Sconce.Serving.stop/1` or by an error in its process. A serving that its supervisor " <>
          "shuts down, or that is killed, sends no event.",
      measurements: []
    ]
  ]

  rows =
    for {name, event} <- @catalogue do
      fields = Enum.map_join(event[:measurements], "; ", fn {key, doc} -> "`#{key}` #{doc}" end)
      "| `:#{name}` | #{event[:doc]} | #{fields} |\n"
    end

  @moduledoc """
  The `:telemetry` events of a `Sconce.Serving`, sent if the host has `:telemetry`.

  Handlers of `[:sconce, :serving, name]` get the measurements below, and `serving` (the pid) and `name` as metadata.

  | event | when | measurements |
  |---|---|---|
  #{rows}

  A handler for all events:

      :telemetry.attach_many("metrics", Sconce.Serving.Events.telemetry_names(), &MyApp.Metrics.handle/4, nil)

  `all/0` returns the same table as data.
  """

  @doc """
  Returns all events as maps: `name`, `telemetry` (the event name), `doc`, and `measurements` with their meaning.

      iex> Enum.map(Sconce.Serving.Events.all(), & &1.name)
      #{inspect(for {name, _event} <- @catalogue, do: name)}
  """
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

  @doc """
  Returns the event names, for `:telemetry.attach_many/4`.

      iex> Sconce.Serving.Events.telemetry_names()
      #{inspect(for {name, _event} <- @catalogue, do: [:sconce, :serving, name])}
  """
  @spec telemetry_names() :: [[atom]]
  def telemetry_names, do: Enum.map(all(), & &1.telemetry)

  @doc false
  # The statistics of `Sconce.Serving.stats/1`, with distributions flattened to one level.
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
    # The compiler does not see this call, so a host without `:telemetry` gets no warning.
    apply(:telemetry, :execute, [[:sconce, :serving, name], measurements, metadata])
  end
end
