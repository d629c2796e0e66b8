// Reads a JSON list of queries and writes, for each, the list of what is wrong with it.
'use strict';
const fs = require('fs');
const path = require('path');

const service = path.join(process.argv[2], 'node_modules', '@kusto', 'language-service-next');
require(path.join(service, 'bridge.min.js'));
require(path.join(service, 'Kusto.Language.Bridge.min.js'));

const { GlobalState, KustoCode, Symbols } = Kusto.Language;
// Of what Application Insights makes of a metric, the columns that an alert may ask for.
const columns = '(TimeGenerated: datetime, Name: string, Sum: real, Min: real, Max: real, ItemCount: int, ' +
  'Properties: dynamic, AppRoleName: string, AppRoleInstance: string)';
const tables = [Symbols.TableSymbol.From(columns).WithName('AppMetrics')];
const workspace = new Symbols.DatabaseSymbol.ctor('logs', null).AddMembers(tables);
const globals = GlobalState.Default.WithDatabase(workspace);

const findings = JSON.parse(fs.readFileSync(0, 'utf8')).map((query) => {
  const found = KustoCode.ParseAndAnalyze(query, globals).GetDiagnostics();
  return Array.from({ length: found.Count }, (_, index) => found.getItem(index).Message);
});
console.log(JSON.stringify(findings));
