defmodule Sconce.HRR.Card do
  @moduledoc false
  # The device on which calls of `Sconce.HRR` run.

  alias Sconce.{Device, Error, HRR, Native, Options}
  alias Sconce.Native.Call

  @has "a card has in_domain, bind, unbind, similarity, quantise, and superpose of one batch"

  @doc """
  Calls `here` if the batches are on the CPU and `there` if they are on a card, and returns the device and the answer.
  Without `there` a card is refused by name, and so are batches on different devices.
  """
  @spec run([map], atom, (reference -> term), (reference -> term) | nil) ::
          {:ok, Device.t(), term} | {:error, Error.t()}
  def run([first | _rest] = batches, op, here, there \\ nil) do
    cond do
      not Enum.any?(batches, &there?/1) ->
        answer(%Device{}, here)

      not Enum.all?(batches, &(there?(&1) and Device.same?(&1.device, first.device))) ->
        refused(op, "the batches are on different devices")

      there == nil ->
        refused(op, @has)

      true ->
        answer(first.device, there)
    end
  end

  @doc "The batch that `run/4` makes."
  @spec made([map], atom, (reference -> term), (reference -> term) | nil) ::
          {:ok, HRR.t()} | {:error, Error.t()}
  def made([%{form: form} | _rest] = batches, op, here, there \\ nil) do
    with {:ok, device, answer} <- run(batches, op, here, there),
         do: batch({:ok, answer}, form, device)
  end

  @doc "The batch of an answer of the native side."
  @spec batch({:ok, term} | {:error, Error.t()}, atom, Device.t()) ::
          {:ok, HRR.t()} | {:error, Error.t()}
  def batch(answer, form, device \\ %Device{})

  def batch({:ok, {ref, {count, dimension, spectrum?}}}, form, device) do
    domain = if spectrum?, do: :spectrum, else: :time
    sizes = %{count: count, dimension: dimension, domain: domain, device: device}
    {:ok, struct!(HRR, Map.merge(sizes, %{ref: ref, form: form}))}
  end

  def batch(error, _form, _device), do: error

  @doc "The handles of a list of batches."
  @spec refs!(term) :: [reference]
  def refs!(batches) do
    if not match?([_ | _], batches) or List.improper?(batches) or
         not Enum.all?(batches, &is_struct(&1, HRR)),
       do: Options.argument!("batches", batches, "a list of batches of Sconce.HRR")

    for %{ref: ref} <- batches, do: ref
  end

  defp answer(device, call) do
    with {:ok, answer} <- Call.in_background(call), do: {:ok, device, answer}
  end

  defp there?(batch), do: match?(%{device: %Device{kind: :cuda}}, batch)

  defp refused(op, reason) do
    details = %{what: "#{op} on a card", reason: reason, mend: "Sconce.HRR.on(batch, :cpu)"}
    {:error, %Error{kind: :unavailable, op: op, details: details}}
  end

  @doc "The items of a batch with 8 bits a number."
  @spec quantise(HRR.t()) :: {:ok, HRR.Quantised.t()} | {:error, Error.t()}
  def quantise(%{ref: ref} = batch) do
    {here, there} = {&Native.hrr_quantise(ref, &1), &Native.hrr_card_quantise(ref, &1)}

    with {:ok, _device, codes} <- run([batch], :quantise, here, there) do
      sizes = Map.take(batch, [:count, :dimension, :domain, :device])
      {:ok, struct!(HRR.Quantised, Map.put(sizes, :ref, codes))}
    end
  end

  @doc "A batch on another device."
  @spec on(HRR.t(), Device.t()) :: {:ok, HRR.t()} | {:error, Error.t()}
  def on(%{ref: ref, form: form} = own, device) do
    cond do
      not there?(own) and device.kind == :cpu ->
        {:ok, own}

      there?(own) and Device.same?(own.device, device) ->
        {:ok, own}

      there?(own) ->
        here = batch(Call.in_background(&Native.hrr_card_to_cpu(ref, &1)), form)
        with {:ok, here} <- here, do: on(here, device)

      true ->
        card = to_string(device)
        batch(Call.in_background(&Native.hrr_card_new(ref, &1, card)), form, device)
    end
  end
end
