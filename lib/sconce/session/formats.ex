defmodule Sconce.Session.Formats do
  @moduledoc false
  # The fastest of the formats of a packed policy that a session or a serving allows.

  alias Sconce.{Error, Native, Options, Policy, Session, Tuner}
  alias Sconce.Native.Call
  alias Sconce.Policy.Spec

  # Rounds of about 2 ms for each format.
  @rounds 15

  @doc "Returns a format; of `{:auto, formats}` the one with the fastest step on this machine."
  @spec fastest(Policy.t(), Session.weights() | {:auto, [Session.weights()]}, boolean | nil) ::
          {:ok, Session.weights()} | {:error, Error.t()}
  def fastest(_policy, {:auto, []}, _tuner),
    do: Options.argument!("option :weights", {:auto, []}, "at least one format")

  def fastest(policy, {:auto, formats}, tuner) do
    formats = Enum.uniq(formats)

    if match?([_], formats) or not Tuner.on?(tuner) do
      {:ok, hd(formats)}
    else
      labels = Map.new(formats, &{Tuner.label(&1), &1})
      with {:ok, choice} <- recalled(policy, labels), do: {:ok, Map.fetch!(labels, choice.label)}
    end
  end

  def fastest(_policy, format, _tuner), do: {:ok, format}

  defp recalled(policy, labels) do
    of_policy =
      {Spec.to_native(policy.spec), policy.bits, policy.packed, to_string(policy.device)}

    asked = {of_policy, Map.keys(labels)}
    key = %{kind: "weights", asked: asked, about: Spec.summary(policy.spec)}
    again = fn label -> with {:ok, [us]} <- times(policy, [labels[label]], 1), do: {:ok, us} end
    holds = &Tuner.among(&1, Map.keys(labels))
    Tuner.recall(key, fn -> swept(policy, Enum.to_list(labels)) end, again, holds)
  end

  defp swept(policy, labels) do
    {names, formats} = Enum.unzip(labels)

    with {:ok, times} <- times(policy, formats, @rounds) do
      rows = for {name, us} when us != nil <- Enum.zip(names, times), do: {name, %{"us" => us}}
      {name, _numbers} = Enum.min_by(rows, fn {_name, %{"us" => us}} -> us end)
      {:ok, {name, rows, %{}}}
    end
  end

  defp times(policy, formats, rounds) do
    formats = Enum.map(formats, &Session.format/1)
    Call.run(&Native.policy_formats_us(policy.ref, &1, formats, rounds))
  end
end
