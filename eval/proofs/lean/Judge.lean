/-! Lean judges proofs. Every command of a file is elaborated in turn. At a theorem that is asked
about, the original must pass first; then variants of the file, which differ from it in that one
proof, are tried from the same state. A proof passes if and only if

- the variant's command ends where the original's does, so nothing else was slipped in,
- Lean reports no error and the theorem exists with the original's statement,
- it uses no `sorry`, no compiled evaluation, and no axiom that no library declares.

One line per event goes to the output: a number asked about, a word, and a text. The text may quote
the proof, so nothing in it may end a line or a field. -/

open Lean Elab Command Parser

namespace Judge

def isPlain (c : Char) : Bool :=
  32 ≤ c.toNat && !(127 ≤ c.toNat && c.toNat < 160) && c.toNat != 0x2028 && c.toNat != 0x2029

def write (out : String) (number : Nat) (word text : String) : IO Unit := do
  let handle ← IO.FS.Handle.mk out IO.FS.Mode.append
  let line := text.map fun c => if isPlain c then c else ' '
  handle.putStr (String.append (Nat.repr number)
    (String.append "\t" (String.append word (String.append "\t" (String.append line "\n")))))
  handle.flush

def parserContext (state : Command.State) : ParserModuleContext :=
  match state.scopes with
  | scope :: _ =>
    { env := state.env, options := scope.opts, currNamespace := scope.currNamespace,
      openDecls := scope.openDecls }
  | [] => { env := state.env, options := {} }

def scopeName (state : Command.State) : Name :=
  match state.scopes with
  | scope :: _ => scope.currNamespace
  | [] => Name.anonymous

/-- The first declared name after a byte of the file. -/
partial def declaredAfter (stx : Syntax) (byte : Nat) : Option Name :=
  match stx with
  | .node _ kind args =>
    if kind == ``Lean.Parser.Command.declId then
      match stx.getPos? with
      | some position => if byte < position.byteIdx then some stx[0].getId else none
      | none => none
    else
      let rec each (i : Nat) : Option Name :=
        if h : i < args.size then
          match declaredAfter args[i] byte with
          | some name => some name
          | none => each (i + 1)
        else none
      each 0
  | _ => none

def fullName (env : Environment) (scope name : Name) : Option Name :=
  let plain := if name.getRoot == `_root_ then name.replacePrefix `_root_ Name.anonymous
    else Name.append scope name
  let hidden := mkPrivateName env plain
  if env.contains hidden then some hidden
  else if env.contains plain then some plain
  else none

def forbidden (name : Name) : Bool :=
  name == ``sorryAx || name == `Lean.ofReduceBool || name == `Lean.ofReduceNat
    || name == `Lean.trustCompiler

/-- An axiom that a proof may not use. Theorems of the library come without their proofs and count
as axioms here, so an axiom is fine if a library module declares it and it is none of the above. -/
def unwanted (env : Environment) (axioms : Array Name) (i : Nat) : Option Name :=
  if h : i < axioms.size then
    if forbidden axioms[i] then some axioms[i]
    else match env.getModuleIdxFor? axioms[i] with
      | some _ => unwanted env axioms (i + 1)
      | none => some axioms[i]
  else none
termination_by axioms.size - i

def firstError (messages : List Message) : IO (Option String) :=
  match messages with
  | [] => pure none
  | message :: rest =>
    match message.severity with
    | .error => do
      let text ← message.data.toString
      pure (some text)
    | _ => firstError rest

inductive Outcome where
  | bad (word text : String)
  | good (statement : Expr)

def examined (before after : Command.State) (name : Name) : Outcome :=
  match fullName after.env (scopeName before) name with
  | none => .bad "error" "nothing is declared"
  | some full =>
    let (_, used) := ((CollectAxioms.collect full).run after.env).run {}
    match unwanted after.env used.axioms 0 with
    | some name => .bad "axiom" name.toString
    | none =>
      match after.env.find? full with
      | some info => .good info.type
      | none => .bad "error" "nothing is declared"

/-- Elaborate one command from a state that stays as it is. -/
def outcome (context : Command.Context) (before : Command.State) (command : Syntax)
    (byte : Nat) : IO Outcome := do
  let cell ← IO.mkRef { before with messages := {} }
  let done ← EIO.toBaseIO (elabCommandTopLevel command context cell)
  let after ← ST.Ref.get cell
  match done, declaredAfter command byte with
  | .error _, _ => pure (.bad "error" "exception")
  | .ok _, none => pure (.bad "error" "no declaration")
  | .ok _, some name =>
    let error ← firstError after.messages.toList
    match error with
    | some text => pure (.bad "error" text)
    | none => pure (examined before after name)

def inputOf (path : String) : IO InputContext := do
  let text ← IO.FS.readFile path
  pure { inputString := text, fileName := path, fileMap := FileMap.ofString text }

def contextOf (input : InputContext) : Command.Context :=
  { fileName := input.fileName, fileMap := input.fileMap, snap? := none, cancelTk? := none }

/-- A theorem asked about: the byte of its keyword, and variants of the file with their numbers. -/
abbrev Asked := Nat × List (Nat × String)

def tryVariant (out : String) (before : Command.State) (start : ModuleParserState)
    (original : InputContext) (stop byte : Nat) (statement : Expr) (number : Nat)
    (path : String) : IO Unit := do
  write out number "start" ""
  let input ← inputOf path
  let (command, next, messages) := parseCommand input (parserContext before) start {}
  let here := next.pos.byteIdx + original.inputString.utf8ByteSize
  if messages.hasErrors then
    write out number "error" "it does not parse"
  else if here != stop + input.inputString.utf8ByteSize then
    write out number "error" "it does not end where the proof ends"
  else
    let found ← outcome (contextOf input) before command byte
    match found with
    | .bad word text => write out number word text
    | .good other =>
      if other == statement then write out number "proved" ""
      else write out number "error" "it changes the statement"

def eachVariant (attempt : Nat → String → IO Unit) (variants : List (Nat × String)) : IO Unit :=
  match variants with
  | [] => pure ()
  | (number, path) :: rest => do
    attempt number path
    eachVariant attempt rest

def eachAsked (out : String) (before : Command.State) (start : ModuleParserState)
    (input : InputContext) (command : Syntax) (stop : Nat) (asked : List Asked) : IO Unit :=
  match asked with
  | [] => pure ()
  | (byte, variants) :: rest => do
    if start.pos.byteIdx ≤ byte && byte < stop then
      let found ← outcome (contextOf input) before command byte
      match found with
      | .bad word text =>
        eachVariant (fun number _ =>
          write out number "original" (String.append word (String.append " " text))) variants
      | .good statement =>
        eachVariant (tryVariant out before start input stop byte statement) variants
    eachAsked out before start input command stop rest

partial def eachCommand (out : String) (input : InputContext) (cell : IO.Ref Command.State)
    (asked : List Asked) (start : ModuleParserState) : IO Unit := do
  let before ← ST.Ref.get cell
  let (command, next, _) := parseCommand input (parserContext before) start {}
  if isTerminalCommand command then
    pure ()
  else
    eachAsked out before start input command next.pos.byteIdx asked
    let _ ← EIO.toBaseIO (elabCommandTopLevel command (contextOf input) cell)
    eachCommand out input cell asked next

/-- Judge the variants of one file; `number` is one of them, `first` the byte of its first command. -/
def file (out path : String) (number first : Nat) (asked : List Asked) : CommandElabM Unit :=
  fun _ state => do
    let now ← ST.Ref.get state
    let options := match now.scopes with
      | scope :: _ => scope.opts
      | [] => {}
    let _ ← EIO.toBaseIO do
      write out number "file" ""
      let input ← inputOf path
      let cell ← IO.mkRef (Command.mkState now.env {} options)
      eachCommand out input cell asked { pos := ⟨first⟩ }

end Judge
