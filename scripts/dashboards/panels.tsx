// Draws one dashboard with Grafana's own library, from its JSON and what Prometheus answered: see ../picture-dashboards.
import {
  applyFieldOverrides, cacheFieldDisplayNames, createTheme, dateTime, DataFrame, Field, FieldType, getDisplayProcessor, getFieldDisplayName,
  getFieldDisplayValues, Registry, standardTransformers, standardTransformersRegistry, ThemeContext, toDataFrame,
  transformDataFrame,
} from '@grafana/data';
import { BigValue, GlobalStyles, PanelChrome, TimeSeries } from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';
import React from 'react';
import { createRoot } from 'react-dom/client';
import { lastValueFrom } from 'rxjs';

type Json = any;
const { dashboard, answers, variables, from, to, width, dark, open } = (window as Json).PICTURE;
const theme = createTheme({ colors: { mode: dark ? 'dark' : 'light' } });
const range = { from: dateTime(from * 1000), to: dateTime(to * 1000), raw: { from: 'now-6h', to: 'now' } } as Json;
const replace = (text = '') => text.replace(/\$\{?(\w+)[^}]*\}?/g, (whole, name) => variables[name] ?? whole);

standardTransformersRegistry.setInit(() => 
  [...new Map(Object.values(standardTransformers).map((one: Json) => [one.id, one])).values()].map((one: Json) => ({
  id: one.id, name: one.name, transformation: () => Promise.resolve(one) })) as Json);
// Grafana's core registers each option of a field with its editor; to draw, its path is enough.
const properties = new Registry<Json>(() => []);
const ids = new Set<string>();
const register = (id: string) => !ids.has(id) && ids.add(id) && properties.register({
  id, path: id.replace(/^custom\./, ''), isCustom: id.startsWith('custom.'), name: id,
  process: (value: Json) => value, shouldApply: () => true });
['unit', 'min', 'max', 'decimals', 'displayName', 'noValue', 'color', 'thresholds', 'mappings', 'links'].forEach(register);

// --- what the data source of Grafana makes of an answer ---

function framesOf(panel: Json): DataFrame[] {
  const found = panel.targets.map((target: Json) => ({ target, series: answers[panel.id][target.refId] }))
    .filter((one: Json) => one.series.length);
  return found.flatMap(({ target, series }: Json) => target.format === 'table'
    ? [asTable(target, series, panel.targets.length)] : series.map((one: Json) => asSeries(target, one)));
}

function asTable(target: Json, series: Json[], queries: number): DataFrame {
  const labels = [...new Set<string>(series.flatMap((one) => Object.keys(one.metric)))].filter((one) => one !== '__name__').sort();
  const value = queries > 1 ? `Value #${target.refId}` : 'Value';
  return toDataFrame({ refId: target.refId, fields: [
    { name: 'Time', type: FieldType.time, values: series.map((one) => one.value[0] * 1000) },
    ...labels.map((name) => ({ name, type: FieldType.string, values: series.map((one) => one.metric[name] ?? '') })),
    { name: value, type: FieldType.number, values: series.map((one) => Number(one.value[1])) },
  ] });
}

function asSeries(target: Json, one: Json): DataFrame {
  const { __name__, ...labels } = one.metric;
  const legend = target.legendFormat === '__auto' ? __name__ ?? 'value'
    : target.legendFormat.replace(/\{\{(\w+)\}\}/g, (_: string, name: string) => one.metric[name] ?? '');
  const points = one.values ?? [one.value];
  return toDataFrame({ refId: target.refId, fields: [
    { name: 'Time', type: FieldType.time, values: points.map((point: Json) => point[0] * 1000) },
    { name: 'Value', type: FieldType.number, labels, config: { displayNameFromDS: legend }, values: points.map((point: Json) => Number(point[1])) },
  ] });
}

async function prepared(panel: Json): Promise<DataFrame[]> {
  const frames = framesOf(panel);
  const changed = panel.transformations?.length && frames.length
    ? await lastValueFrom(transformDataFrame(panel.transformations, frames, { interpolate: replace } as Json)) : frames;
  Object.keys(panel.fieldConfig.defaults.custom).forEach((key) => register(`custom.${key}`));
  panel.fieldConfig.overrides.forEach((one: Json) => one.properties.forEach((property: Json) => register(property.id)));
  const shown = applyFieldOverrides({ data: changed, fieldConfig: panel.fieldConfig, fieldConfigRegistry: properties as Json,
    replaceVariables: replace as Json, theme, timeZone: 'utc' });
  cacheFieldDisplayNames(shown);
  return shown;
}

// --- panels ---

function Content({ panel, frames, w, h }: Json) {
  const none = panel.fieldConfig.defaults.noValue;
  if (panel.type === 'stat') {
    const values = getFieldDisplayValues({ fieldConfig: panel.fieldConfig, reduceOptions: panel.options.reduceOptions,
      replaceVariables: replace as Json, theme, data: frames, timeZone: 'utc' });
    return <div style={{ display: 'flex' }}>{values.map((one, at) =>
      <BigValue key={at} theme={theme} value={one.display} width={w / values.length} height={h} count={values.length} {...panel.options} />)}</div>;
  }
  if (!frames.length) {
    return <div style={{ height: h, display: 'flex', alignItems: 'center', justifyContent: 'center', textAlign: 'center', color: theme.colors.text.secondary }}>{none}</div>;
  }
  if (panel.type === 'table') {
    return <TableNG data={frames[0]} width={w} height={h} sortBy={panel.options.sortBy} cellHeight={panel.options.cellHeight}
      noHeader={!panel.options.showHeader} fieldConfig={panel.fieldConfig} noValue={none} enableVirtualization={false} structureRev={1} />;
  }
  if (panel.type === 'timeseries') {
    return <TimeSeries frames={frames} width={w} height={h} timeRange={range} timeZone="utc" legend={panel.options.legend} options={panel.options} />;
  }
  return panel.type === 'heatmap' ? <>A heatmap of {frames.length} buckets; not drawn here.</> : <Bars frames={frames} w={w} h={h} />;
}

// State timelines are not in the library: a bar for each series, in the colours of the panel.
function Bars({ frames, w, h }: Json) {
  const at = (time: number) => `${(100 * (time / 1000 - from)) / (to - from)}%`;
  return <div style={{ width: w, height: h, overflow: 'hidden' }}>{frames.map((frame: DataFrame, line: number) => {
    const [times, values] = frame.fields as [Field, Field];
    const show = values.display ?? getDisplayProcessor({ field: values, theme });
    return <div key={line} style={{ display: 'flex', height: Math.min(28, h / frames.length), fontSize: 11 }}>
      <div style={{ width: 150, overflow: 'hidden', whiteSpace: 'nowrap' }}>{getFieldDisplayName(values, frame)}</div>
      <div style={{ position: 'relative', flex: 1 }}>{times.values.map((time: number, place: number) => {
        const value = show(values.values[place]);
        return <div key={place} title={value.text} style={{ position: 'absolute', left: at(time), top: 1, bottom: 1, background: value.color, width: at(from * 1000 + 30000) }} />;
      })}</div></div>;
  })}</div>;
}

// --- the grid, as Grafana lays it out: 24 columns, every panel as far up as it can go ---

function laidOut(): Json[] {
  const shown: Json[] = dashboard.panels.flatMap((panel: Json) => panel.type === 'row' && panel.collapsed && open
    ? [panel, ...panel.panels] : [panel]);
  const placed: Json[] = [];
  for (const panel of shown.sort((a, b) => a.gridPos.y - b.gridPos.y || a.gridPos.x - b.gridPos.x)) {
    const box = panel.gridPos;
    box.y = Math.max(0, ...placed.filter((one) => one.x < box.x + box.w && box.x < one.x + one.w).map((one) => one.y + one.h));
    placed.push(box);
  }
  return shown;
}

function Page({ panels }: Json) {
  const column = (width - 16) / 24, line = 38;
  return <ThemeContext.Provider value={theme}>
    <GlobalStyles hackNoBackdropBlur={true} isExtensionSidebarOpen={false} />
    <div style={{ position: 'relative', background: theme.colors.background.canvas, width, height: line * Math.max(...panels.map(({ panel }: Json) => panel.gridPos.y + panel.gridPos.h)) + 48 }}>
      <div style={{ padding: '10px 16px', fontSize: 15 }}>{dashboard.title}<span style={{ color: theme.colors.text.secondary }}>{
        dashboard.templating.list.filter((one: Json) => one.name in variables).map((one: Json) => `    ${one.label}: ${variables[one.name]}`)}</span></div>
      {panels.map(({ panel, frames }: Json) => {
        const { x, y, w, h } = panel.gridPos;
        const box = { position: 'absolute' as const, left: 8 + x * column, top: 44 + y * line };
        if (panel.type === 'row') {
          return <div key={panel.id} style={{ ...box, padding: 6, fontWeight: 500 }}>{panel.collapsed && !open ? `› ${panel.title}  (${panel.panels.length} panels)` : `⌄ ${panel.title}`}</div>;
        }
        return <div key={panel.id} style={box}><PanelChrome title={panel.title} description={panel.description} width={w * column - 8} height={h * line - 8}>
          {(w, h) => <Content panel={panel} frames={frames} w={w} h={h} />}</PanelChrome></div>;
      })}
    </div></ThemeContext.Provider>;
}

(async () => {
  const panels = await Promise.all(laidOut().map(async (panel) => ({ panel, frames: panel.type === 'row' ? [] : await prepared(panel) })));
  (window as Json).TABLES = panels.filter(({ panel, frames }) => panel.type === 'table' && frames.length).length;
  createRoot(document.getElementById('page')!).render(<Page panels={panels} />);
})();
