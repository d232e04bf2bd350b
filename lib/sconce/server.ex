defmodule Sconce.Server do
  @moduledoc false
  # `use GenServer`, with callbacks that survive unknown messages. An unknown call is answered by an error of kind
  # `:mismatch`, and other unknown messages are dropped. A plain `GenServer` would crash, and would end a serving or a
  # run of hours.

  alias Sconce.Error

  @callbacks [handle_call: 3, handle_cast: 2, handle_info: 2]

  defmacro __using__(opts) do
    quote do
      use GenServer, unquote(opts)
      @before_compile Sconce.Server

      # Default callbacks, for a module that defines none.
      unquote(clauses(@callbacks))
      defoverridable unquote(@callbacks)

      Module.register_attribute(__MODULE__, :sconce_own_callbacks, accumulate: true)
      @on_definition Sconce.Server
    end
  end

  @doc "Records the callbacks that a module defines after `use`."
  def __on_definition__(env, :def, name, args, _guards, _body) do
    callback = {name, length(args)}

    if callback in @callbacks,
      do: Module.put_attribute(env.module, :sconce_own_callbacks, callback)
  end

  def __on_definition__(_env, _kind, _name, _args, _guards, _body), do: :ok

  # Adds a last clause to each recorded callback.
  defmacro __before_compile__(env) do
    own = env.module |> Module.get_attribute(:sconce_own_callbacks) |> Enum.uniq()
    clauses(own)
  end

  defp clauses(callbacks), do: {:__block__, [], Keyword.keys(callbacks) |> Enum.map(&clause/1)}

  defp clause(:handle_call) do
    quote do
      def handle_call(request, _from, state),
        do: {:reply, Sconce.Server.unknown(__MODULE__, request), state}
    end
  end

  defp clause(name) do
    quote do
      def unquote(name)(_message, state), do: {:noreply, state}
    end
  end

  @doc "The answer to an unknown call."
  @spec unknown(module, term) :: {:error, Error.t()}
  def unknown(server, request) do
    got = inspect(request, limit: 5, printable_limit: 80)
    details = %{what: "call", expected: "one of #{inspect(server)}", got: got}
    {:error, %Error{kind: :mismatch, op: :call, details: details}}
  end
end
