defmodule Sconce.Policy.WeightsTest do
  use ExUnit.Case, async: true

  alias Sconce.{Error, Policy, Session}

  @spec_options [embedding: {:vector, 2}, backbone: :mlp, hidden_sizes: [40]] ++
                  [heads: [move: {:categorical, 3}]]
  @bias "heads.move_logits.bias"
  @matrix "heads.move_logits.weight"

  setup do
    {:ok, policy} = Policy.init(@spec_options, seed: 1)
    {:ok, policy: policy}
  end

  defp values!(policy) do
    {:ok, values} = Policy.weights(policy, as: :binaries)
    values
  end

  test "all weights as binaries make the same policy of another one", %{policy: policy} do
    {:ok, names} = Policy.weights(policy)
    values = values!(policy)
    assert Map.new(values, fn {name, value} -> {name, value.shape} end) == Map.new(names)

    {:ok, other} = Policy.init(@spec_options, seed: 2)
    assert values!(other) != values
    {:ok, same} = Policy.put_weights(other, values)
    assert values!(same) == values

    frame = [[[0.5, -0.5]]]
    assert Policy.forward(same, frame) == Policy.forward(policy, frame)
  end

  test "a subset is replaced in each form, and the policy itself stays", %{policy: policy} do
    before = values!(policy)
    data = for n <- [0.5, -1.0, 2.0], into: <<>>, do: <<n::float-32-little>>
    map = %{data: data, shape: {3}, type: {:f, 32}}

    for value <- [data, [0.5, -1, 2.0], map] do
      {:ok, new} = Policy.put_weights(policy, %{@bias => value})
      assert values!(new) == put_in(before[@bias].data, data)
      {:ok, session} = Session.open(new)
      {:ok, action} = Session.act(session, [0.0, 0.0], logits: true)
      assert length(action.logits.move) == 3
    end

    assert values!(policy) == before
    {:ok, same} = Policy.put_weights(policy, %{})
    assert values!(same) == before
  end

  test "the notes stay", %{policy: policy} do
    path = Path.join(Sconce.Test.Scratch.tmp_dir!(), "policy.safetensors")
    :ok = Policy.save(policy, path, notes: %{step: 7}, packed: :f32)
    {:ok, loaded} = Policy.load(path)
    assert loaded.packed == :f32
    {:ok, new} = Policy.put_weights(loaded, %{@bias => [1, 2, 3]})
    # Packed weights are those of the file.
    assert new.packed == nil
    {:ok, info} = Policy.info(new)
    assert info.notes == %{"step" => 7}
  end

  test "a matrix with codes takes new values", %{policy: policy} do
    {:ok, %{policy: coded}} = Sconce.Compress.Policy.quantise(policy, bits: 8)
    assert coded.bits == 8
    matrix = List.duplicate(List.duplicate(0.25, 64), 3)
    {:ok, new} = Policy.put_weights(coded, %{@matrix => matrix})
    {:ok, data} = Policy.weight(new, @matrix)
    assert data == :binary.copy(<<0.25::float-32-little>>, 192)
  end

  test "unknown names, wrong shapes and numbers that are not finite are refused by name",
       %{policy: policy} do
    nan = <<0, 0, 192, 127>>

    for {weights, kind, text} <- [
          {%{"heads.move_logits.bais" => [1, 2, 3]}, :not_found, ~r/did you mean #{@bias}/},
          {%{"nothing" => [1]}, :not_found, ~r/weight nothing/},
          {%{@bias => [1, 2]}, :mismatch, ~r/#{@bias}: expected the shape \{3\}, got \{2\}/},
          {%{@bias => [[1], [2], [3]]}, :mismatch, ~r/#{@bias}: expected the shape/},
          {%{@bias => 1.0}, :mismatch, ~r/#{@bias}: expected the shape/},
          {%{@bias => <<0, 0>>}, :mismatch, ~r/#{@bias}: expected 12 bytes/},
          {%{@bias => [:a, 2, 3]}, :mismatch, ~r/#{@bias}/},
          {%{@bias => [1.0e300, 2, 3]}, :mismatch, ~r/#{@bias}/},
          {%{@bias => nan <> nan <> nan}, :non_finite, ~r/#{@bias}/},
          {%{@bias => %{data: <<0::96>>, shape: {3}, type: {:s, 32}}}, :mismatch, ~r/#{@bias}/}
        ] do
      assert {:error, %Error{kind: ^kind, op: :put_weights} = error} =
               Policy.put_weights(policy, weights)

      assert Exception.message(error) =~ text
    end

    assert_raise ArgumentError, ~r/#{@bias}/, fn ->
      Policy.put_weights(policy, %{@bias => self()})
    end

    for wrong <- [[], nil, policy, %{1 => [1]}],
        do: assert_raise(ArgumentError, ~r/weights/, fn -> Policy.put_weights(policy, wrong) end)
  end
end
