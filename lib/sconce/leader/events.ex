defmodule Sconce.Leader.Events do
  alias Sconce.Events.Table

  @catalogue [
    elected: [
      doc: "This member leads.",
      measurements: [
        term: "term of the lead",
        election_us: "microseconds from the question to the last vote that was needed"
      ]
    ],
    leader: [
      doc:
        "Another member leads, or `leader` is nil: this member has not heard of one for a lease.",
      measurements: [term: "term of that leader, nil without one"],
      metadata: [leader: "its node"]
    ],
    stepped_down: [
      doc: "This member no longer leads, and its child has ended or was killed.",
      measurements: [term: "term of the lead", led_us: "microseconds for which this member led"],
      metadata: [
        reason:
          "`:expired` (no majority has renewed the lease), `:resigned`, `:child_failed` or `:stopped` (the process ends)"
      ]
    ],
    failed: [
      doc: "An election had no majority; it is repeated after a random time.",
      measurements: [term: "term that was asked for"]
    ],
    misfit: [
      doc:
        "Another member has other `:members`, `:lease_ms` or `:drift`. It comes once for each member.",
      measurements: [],
      metadata: [member: "its node"]
    ]
  ]

  @prefix [:sconce, :leader]

  @moduledoc """
  The events of a `Sconce.Leader`.

  Each event is sent to each caller of `Sconce.Leader.subscribe/1` as the message `{:sconce_leader, name, event}`, a map of
  `event` (its name) and the fields below. If the host has `:telemetry`, handlers of `[:sconce, :leader, event]` get them
  as measurements and metadata, and `name` as metadata.

  | event | when | measurements | metadata |
  |---|---|---|---|
  #{Table.rows(@catalogue)}

  A handler for all events:

      :telemetry.attach_many("leader", Sconce.Leader.Events.telemetry_names(), &MyApp.Metrics.handle/4, nil)

  `all/0` returns the same table as data.
  """

  @doc """
  Returns all events as maps: `name`, `telemetry` (the event name), `doc`, `measurements` and `metadata`.

      iex> Enum.map(Sconce.Leader.Events.all(), & &1.name)
      #{inspect(Keyword.keys(@catalogue))}
  """
  @spec all() :: [map]
  def all, do: Table.all(@catalogue, @prefix)

  @doc """
  Returns the event names, for `:telemetry.attach_many/4`.

      iex> hd(Sconce.Leader.Events.telemetry_names())
      [:sconce, :leader, :elected]
  """
  @spec telemetry_names() :: [[atom]]
  def telemetry_names, do: Enum.map(all(), & &1.telemetry)

  @doc false
  # Emits the event to `:telemetry`, if this VM has it.
  @spec execute(map, atom) :: :ok
  def execute(%{event: _name} = event, name),
    do: Table.execute(@catalogue, @prefix, event, %{name: name})
end
