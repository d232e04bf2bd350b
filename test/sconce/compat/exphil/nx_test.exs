defmodule Sconce.Compat.ExPhil.NxTest do
  # Not async: the test defines Nx.
  use ExUnit.Case, async: false

  alias Sconce.Compat.ExPhil.Agent
  alias Sconce.Test.{MeleeStates, SomeNx}

  test "with Nx the choices and the logits are tensors of ExPhil's shapes, with the numbers of an answer without Nx" do
    start = [policy_path: "test/golden/exphil/gru.bin", deterministic: true]
    state = MeleeStates.state(0)
    {:ok, plain} = Agent.start_link(start)
    {:ok, numbers} = Agent.get_action(plain, state)

    SomeNx.with_nx(fn ->
      {:ok, agent} = Agent.start_link(start)
      {:ok, action, _confidence} = Agent.get_action_with_confidence(agent, state)
      assert Map.keys(action) == Map.keys(numbers)

      assert action.buttons ==
               SomeNx.tensor(:binary.list_to_bin(numbers.buttons), {:u, 8}, {1, 8})

      for name <- [:main_x, :main_y, :c_x, :c_y, :shoulder],
          do: assert(action[name] == SomeNx.tensor(<<numbers[name]::32-little>>, {:s, 32}, {1}))

      for {name, values} <- numbers.logits do
        data = for value <- values, into: <<>>, do: <<value::float-32-little>>
        assert action.logits[name] == SomeNx.tensor(data, {:f, 32}, {1, length(values)})
      end
    end)
  end
end
