defmodule Sconce.Bot.Source do
  @moduledoc false
  # The policy of a bot, from a struct, a file or a serving, and whether the bot's options suit it.

  alias Sconce.{Action, Error, Game, Policy, Serving, Session}
  alias Sconce.Bot.Player
  alias Sconce.Policy.{Head, Spec}

  @doc "Returns whether the neutral choices are the policy's. Options that would have no effect raise."
  @spec suits!(keyword, Spec.t()) :: :ok | {:error, Error.t()}
  def suits!(options, spec) do
    melee? = Player.melee?(spec)
    measure? = options[:frame_delay] == :measure

    melee? or not measure? ||
      no_effect!(":frame_delay: :measure", "a policy of Melee's controller")

    melee? or options[:jump_debounce] == 0 ||
      no_effect!(":jump_debounce", "a policy of Melee's controller")

    options[:on_game] != nil or not options[:record] ||
      no_effect!(":record", "the option :on_game")

    with choices when choices != nil <- options[:neutral],
         {:ok, labels} <- Action.labels(spec, :neutral, choices),
         needed = spec.heads |> Enum.map(&Head.labels(&1.kind)) |> Enum.sum(),
         true <- length(labels) == needed || needed do
      :ok
    else
      nil -> :ok
      {:error, error} -> {:error, %{error | op: :bot}}
      needed -> {:error, misfit("#{needed} labels of all heads", options[:neutral])}
    end
  end

  defp no_effect!(option, needed), do: raise(ArgumentError, "option #{option} needs #{needed}")

  defp misfit(expected, got) do
    details = %{what: "neutral", expected: expected, got: inspect(got, limit: 20)}
    %Error{kind: :mismatch, op: :bot, details: details}
  end

  @doc "Returns a function that opens a session with further options, and the Spec."
  @spec find(term, term, keyword) ::
          {:ok, (keyword -> {:ok, Session.t()} | {:error, Error.t()}), Spec.t()}
          | {:error, Error.t()}
  def find(nil, serving, opts) when serving != nil do
    with {:ok, %{policy: policy}} <- Serving.info(serving),
         do: {:ok, &Serving.open(serving, opts ++ &1), policy.spec}
  end

  def find(path, nil, opts) when is_binary(path) do
    with {:ok, policy} <- Policy.load(path), do: find(policy, nil, opts)
  end

  def find(%Policy{spec: spec} = policy, nil, opts),
    do: {:ok, &Session.open(policy, opts ++ &1), spec}

  @doc "Whether a policy plays the game of another one."
  @spec same_game(Spec.t(), Spec.t()) :: :ok | {:error, Error.t()}
  def same_game(%Spec{embedding: old} = before, %Spec{embedding: new} = spec) do
    if kind(old) == kind(new) and Player.melee?(before) == Player.melee?(spec) do
      :ok
    else
      details = %{
        what: "policy",
        expected: "frames of #{inspect(kind(old))}",
        got: inspect(kind(new))
      }

      {:error, %Error{kind: :mismatch, op: :load, details: details}}
    end
  end

  defp kind({%Game{name: name}, _options}), do: name
  defp kind(embedding) when is_tuple(embedding), do: elem(embedding, 0)
  defp kind(embedding), do: embedding
end
