// What a dashboard's JSON must be, from Grafana's own types: enums as the text that stands in JSON,
// targets as the Prometheus data source has them, options and fields as each panel plugin has them.
import type { Dashboard, DataQuery, Panel, RowPanel, VariableModel } from '@grafana/schema';
import type * as graph from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';
import type * as stat from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type * as heatmap from '@grafana/schema/dist/esm/raw/composable/heatmap/panelcfg/x/HeatmapPanelCfg_types.gen';
import type * as xy from '@grafana/schema/dist/esm/raw/composable/xychart/panelcfg/x/XYChartPanelCfg_types.gen';
import type * as states from '@grafana/schema/dist/esm/raw/composable/statetimeline/panelcfg/x/StateTimelinePanelCfg_types.gen';
import type * as table from '@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen';

type Plain<T> = T extends string ? `${T}` : T extends (infer U)[] ? Plain<U>[]
  : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;
type Target = DataQuery & {
  expr: string; legendFormat?: string; format?: 'time_series' | 'heatmap' | 'table';
  instant?: boolean; range?: boolean; interval?: string;
};
type Source = { type: 'prometheus'; uid: string };
type Defaults = NonNullable<NonNullable<Panel['fieldConfig']>['defaults']>;
type Of<Type, Options, Custom> = Plain<Omit<Panel, 'type' | 'options' | 'fieldConfig' | 'targets'>> & {
  type: Type; options: Plain<Options>; targets: Plain<Target>[]; datasource: Source;
  fieldConfig: {
    defaults: Plain<Omit<Defaults, 'custom'>> & { custom?: Plain<Custom> };
    overrides: Plain<NonNullable<Panel['fieldConfig']>['overrides']>;
  };
};
// 13 needs `percentChangeColorMode`, 10.4 ignores it
type Stat = Omit<stat.Options, 'percentChangeColorMode'> & { percentChangeColorMode: 'standard' };
type AnyPanel =
  | Of<'timeseries', graph.Options, graph.FieldConfig>
  | Of<'stat', Stat, never>
  | Of<'heatmap', Partial<heatmap.Options>, heatmap.FieldConfig>
  | Of<'xychart', xy.Options, xy.FieldConfig>
  | Of<'state-timeline', states.Options, states.FieldConfig>
  | Of<'table', table.Options, table.FieldConfig>
  | Plain<RowPanel>;
// `auto`, `auto_min` and `auto_count` are of interval variables, which the type has forgotten
type Variable = Plain<VariableModel> & { auto?: boolean; auto_min?: string; auto_count?: number };
type Note = { name: string; enable: boolean; hide?: boolean; iconColor: string; builtIn?: 0 | 1;
  datasource: Source; target: Plain<Target>; titleFormat: string; placement?: 'inControlsMenu' };
// what an export for others adds
type Input = { name: string; label: string; description: string; type: 'datasource';
  pluginId: string; pluginName: string };
type Required = { type: 'grafana' | 'datasource' | 'panel'; id: string; name: string; version: string };
export type Whole = Plain<Omit<Dashboard, 'panels' | 'templating' | 'annotations'>> & {
  panels: AnyPanel[]; templating: { list: Variable[] }; annotations: { list?: Note[] };
  __inputs: Input[]; __requires: Required[];
};
