defmodule Sconce.Policy.Placement do
  @moduledoc false
  # Puts policies on devices. The table of `Sconce.Pressure` decides about failures. A retry collects garbage first, because
  # a full card may hold policies that are garbage of this process.

  alias Sconce.{Device, Error, Native, Policy, Pressure}
  alias Sconce.Native.Call

  @doc "Copies a policy to a device; nil is the one that it has."
  @spec to(Policy.t(), term, Pressure.t()) :: {:ok, Policy.t()} | {:error, Error.t()}
  def to(%Policy{} = policy, nil, _pressure), do: {:ok, policy}

  def to(%Policy{device: %Device{}} = policy, choice, pressure),
    do: Pressure.place(pressure, choice, &once(policy, &1))

  defp once(policy, %Device{} = device) do
    if Device.same?(policy.device, device),
      do: {:ok, %{policy | device: device}},
      else: move(policy.ref, device)
  end

  defp once(policy, choice),
    do: with({:ok, device} <- Device.resolve(choice), do: once(policy, device))

  @doc "The policy of a handle, on a device. Initialized, loaded and imported weights are on the CPU first."
  @spec place(reference, Device.t()) :: {:ok, Policy.t()} | {:error, Error.t()}
  def place(ref, %Device{kind: :cpu} = device), do: Policy.wrap(ref, device)
  def place(ref, device), do: Pressure.place(Pressure.new(:serve), device, &move(ref, &1))

  defp move(ref, device) do
    with {:ok, ref} <- Call.run(&Native.policy_on(ref, &1, to_string(device))),
         do: Policy.wrap(ref, device)
  end
end
