defmodule Sconce.Env.TensorTest do
  # Not async: the test defines Nx.
  use ExUnit.Case, async: false

  import Sconce.Test.SomeNx

  alias Sconce.Env

  test "tensors as inputs give tensors, with the bytes of binaries" do
    with_nx(fn ->
      [one, other] =
        for _ <- 1..2 do
          {:ok, env} = Env.new(:cart_pole, count: 2, time_limit: 2)
          env
        end

      packed = <<0.0::float-32-little, 1.0::float-32-little>>
      inputs = tensor(packed, {:f, 32}, {2, 1})
      {:ok, plain} = Env.step(one, packed)
      {:ok, step} = Env.step(other, inputs)
      assert step.observation == tensor(plain.observation, {:f, 32}, {2, 4})
      assert step.reward == tensor(plain.reward, {:f, 32}, {2})
      assert step.terminated == tensor(<<0, 0>>, {:u, 8}, {2})
      # Nx has no empty tensor.
      assert {step.ended, step.final_observation} == {[], nil}
      assert Env.put(other, inputs) == :ok
      {:ok, step} = Env.step(other, inputs)
      {:ok, plain} = Env.step(one, packed)
      assert step.final_observation == tensor(plain.final_observation, {:f, 32}, {2, 4})

      mask = tensor(<<1, 0>>, {:u, 8}, {2})
      {:ok, seen} = Env.reset(other, mask)
      {:ok, plain} = Env.reset(one, <<1, 0>>)
      assert seen == tensor(plain, {:f, 32}, {2, 4})
    end)
  end

  test "without Nx a tensor is refused" do
    tensor = %{__struct__: Nx.Tensor}
    {:ok, env} = Env.new(:cart_pole)
    assert_raise ArgumentError, ~r/Nx is not loaded/, fn -> Env.step(env, tensor) end
  end
end
